"""From an outcome to a stored transition: context, leased executions, classification, settling and effects."""
