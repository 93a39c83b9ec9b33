// Shows the pictures of a test when the test is opened. The pictures are packed together
// at the end of the page: as SVG they would be ten times as large.
(() => {
  let drawn = null;
  const unpack = async () => {
    const text = atob(document.getElementById("pictures").textContent.trim());
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const show = async (details) => {
    const places = details.querySelectorAll("[data-picture]:empty");
    if (!places.length) return;
    drawn ??= unpack();
    const pictures = await drawn;
    for (const place of places) place.innerHTML = pictures[Number(place.dataset.picture)];
  };
  for (const details of document.querySelectorAll("details.more"))
    details.addEventListener("toggle", () => { if (details.open) show(details); });
})();
