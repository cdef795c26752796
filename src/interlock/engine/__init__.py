"""From an outcome to a stored transition: context, held executions, classification, settling and effects."""
