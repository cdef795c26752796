// Remembers whether a user is signed in, so that the page does not ask the server without need. It stores nothing else.

const NAME = "studio-signed-in";

export function remember(signedIn) {
  try {
    if (signedIn) localStorage.setItem(NAME, "yes");
    else localStorage.removeItem(NAME);
  } catch {
    // The browser may refuse storage; the page then asks the server.
  }
}

export function isRemembered() {
  try {
    return localStorage.getItem(NAME) !== null;
  } catch {
    return true;
  }
}
