"use strict";
// Landmarks and stops that the theme lacks, for those who read by ear or by keyboard.
document.querySelector(".navbar")?.setAttribute("role", "navigation");
document.querySelectorAll(".bs-sidebar").forEach((e) => e.setAttribute("aria-label", "On this page"));
document.querySelector("footer")?.setAttribute("role", "contentinfo");
document.querySelectorAll("[role=main] pre, [role=main] table").forEach((e) => {
  if (e.scrollWidth > e.clientWidth || e.querySelector("code")?.scrollWidth > e.clientWidth) e.tabIndex = 0;
});
