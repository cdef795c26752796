// What opens above the page. It has a place of its own in the history, so that Back closes it and leaves the view behind it alone.

export function raise(dialog) {
  history.pushState({ above: dialog.id }, "");
  dialog.showModal();
}

const raised = (dialog) => history.state?.above === dialog.id;

/** Close it as Back would: until the history has moved it stays open, so that no click behind it comes between. */
function lower(dialog) {
  if (raised(dialog)) history.back();
  else dialog.close();
}

/** Close it, and go to another view in its place. */
export function leaveFor(dialog, hash) {
  if (raised(dialog)) history.replaceState(null, "", hash);
  dialog.close();
}

export function dialogs() {
  const all = [...document.querySelectorAll("dialog")];
  for (const dialog of all) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest("[data-close]")) lower(dialog);
    });
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      lower(dialog);
    });
    // A browser may close one without asking, and so may the end of a session.
    dialog.addEventListener("close", () => raised(dialog) && history.back());
  }
  addEventListener("popstate", () => {
    for (const dialog of all) if (dialog.open && !raised(dialog)) dialog.close();
    settle(all);
  });
  settle(all);
}

/** Forward, and a page that is loaded again, come to a place whose dialog is closed. */
function settle(all) {
  if (all.some((dialog) => raised(dialog) && !dialog.open)) history.replaceState(null, "");
}
