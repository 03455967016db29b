// Texts that stand out too little from what is behind them, by the rule of WCAG AA.
(() => {
  const rgb = c => c.match(/[\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (rgb(c).length == 3 || rgb(c)[3] > 0) return c; } return 'rgb(255,255,255)'; };
  const out = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) out.push(e.className + ' ' + e.textContent.trim() + ' ' + ((a + .05) / (b + .05)).toFixed(2));
  }
  return out;
})()
