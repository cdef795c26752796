// Dialogs. Each open dialog has an entry in the browser history, so that Back closes it and keeps the view.

export function openDialog(dialog) {
  history.pushState({ above: dialog.id }, "");
  dialog.showModal();
}

const isOpen = (dialog) => history.state?.above === dialog.id;

/** Close a dialog as Back would. It stays open until the history has changed, so that no click reaches the page. */
function closeDialog(dialog) {
  if (isOpen(dialog)) history.back();
  else dialog.close();
}

/** Close a dialog and show another view. */
export function closeAndShow(dialog, hash) {
  if (isOpen(dialog)) history.replaceState(null, "", hash);
  dialog.close();
}

export function setupDialogs() {
  const all = [...document.querySelectorAll("dialog")];
  for (const dialog of all) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest("[data-close]")) closeDialog(dialog);
    });
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      closeDialog(dialog);
    });
    // Browsers may close a dialog by themselves, and so does the end of a session.
    dialog.addEventListener("close", () => isOpen(dialog) && history.back());
  }
  addEventListener("popstate", () => {
    for (const dialog of all) if (dialog.open && !isOpen(dialog)) dialog.close();
    resetHistory(all);
  });
  resetHistory(all);
}

/** Forward and a reload can lead to a history entry whose dialog is closed: reset that entry. */
function resetHistory(all) {
  if (all.some((dialog) => isOpen(dialog) && !dialog.open)) history.replaceState(null, "");
}
