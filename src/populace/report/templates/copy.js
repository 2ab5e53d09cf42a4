for (const button of document.querySelectorAll("button[data-copies]")) {
  const text = document.getElementById(button.dataset.copies);
  button.hidden = false;
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(text);
    let copied = true;
    try { await navigator.clipboard.writeText(text.textContent); } catch { copied = document.execCommand("copy"); }
    button.textContent = copied ? "Copied" : "Selected: copy it with the keyboard";
  });
}
