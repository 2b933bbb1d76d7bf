// A click on a column's head sorts by it; a kernel under the pointer is marked wherever it is shown; a link unfolds its
// target.
const table = document.getElementById('kernels'), value = (row, n) => row.cells[n].dataset.v ?? row.cells[n].innerText;
[...table.tHead.rows[0].cells].forEach((head, n) => head.addEventListener('click', () => {
  const way = head.dataset.way = head.dataset.way === '1' ? -1 : 1;
  const rows = [...table.tBodies[0].rows].map(row => [value(row, n), row]);
  rows.sort(([a], [b]) => way * (isNaN(a) || isNaN(b) ? String(a).localeCompare(b) : b - a));
  table.tBodies[0].append(...rows.map(pair => pair[1]));
}));
const mark = on => event => {
  const own = event.target.closest('[data-k]');
  if (own) document.querySelectorAll(`[data-k="${own.dataset.k}"]`).forEach(x => x.classList.toggle('on', on));
};
document.addEventListener('mouseover', mark(true));
document.addEventListener('mouseout', mark(false));
const drawn = document.getElementById('graph');
if (drawn) {
  drawn.parentElement.classList.add('live');
  const whole = drawn.viewBox.baseVal, all = [whole.x, whole.y, whole.width, whole.height];
  let [x, y, w, h] = all, from = null;
  const show = () => drawn.setAttribute('viewBox', `${x} ${y} ${w} ${h}`);
  const size = () => drawn.getBoundingClientRect(), scale = () => Math.max(w / size().width, h / size().height);
  const first = () => { w = all[2]; h = w * size().height / size().width; x = all[0]; y = all[1]; show(); };
  first();
  drawn.addEventListener('wheel', event => {
    event.preventDefault();
    const box = size(), by = event.deltaY > 0 ? 1.15 : 1 / 1.15;
    const u = (event.clientX - box.left) / box.width, v = (event.clientY - box.top) / box.height;
    x += u * w * (1 - by); y += v * h * (1 - by); w *= by; h *= by; show();
  }, {passive: false});
  drawn.addEventListener('pointerdown', event => { from = [event.clientX, event.clientY, x, y]; });
  addEventListener('pointermove', event => {
    if (from) { x = from[2] - (event.clientX - from[0]) * scale(); y = from[3] - (event.clientY - from[1]) * scale();
      show(); }
  });
  addEventListener('pointerup', () => { from = null; });
  drawn.addEventListener('dblclick', () => { [x, y, w, h] = all; show(); });
}
const unfold = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let x = target; x; x = x.parentElement) if (x.tagName === 'DETAILS') x.open = true;
  if (target) target.scrollIntoView({block: 'nearest'});
};
addEventListener('hashchange', unfold);
unfold();
