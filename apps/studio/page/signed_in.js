// Whether somebody is signed in, as this browser remembers it: where nobody is, the server need not be asked. Nothing more is kept.

const NAME = "studio-signed-in";

export function remember(signedIn) {
  try {
    if (signedIn) localStorage.setItem(NAME, "yes");
    else localStorage.removeItem(NAME);
  } catch {
    // A browser may refuse to keep anything: the server is asked then.
  }
}

export function remembered() {
  try {
    return localStorage.getItem(NAME) !== null;
  } catch {
    return true;
  }
}
