// Images from the camera, where the browser lets a page have it: on this machine, or by https.

import { byId, count, say } from "./elements.js";

const WRONG = {
  NotAllowedError: "The camera is not allowed here: allow it in the browser, then try again.",
  NotFoundError: "There is no camera.",
  NotReadableError: "Another program has the camera.",
};
const dialog = byId("camera-dialog");
const video = byId("camera");
const status = byId("camera-status");
let taken = 0; // images since the dialog was opened
let user = null; // who gets them

// Show a button that hands images on; `many`: the dialog stays open for more of them.
export function offerCamera(button, take, { many = false, ready = () => true } = {}) {
  if (!navigator.mediaDevices?.getUserMedia) return;
  button.hidden = false;
  button.addEventListener("click", () => ready() && open({ take, many }));
}

async function open(next) {
  if (dialog.open) return;
  [user, taken] = [next, 0];
  say(status, "Waiting for the camera ...");
  byId("snap").disabled = true;
  dialog.showModal();
  try {
    const wanted = { video: { facingMode: "environment" }, audio: false };
    const stream = await navigator.mediaDevices.getUserMedia(wanted);
    if (!dialog.open) return stop(stream); // closed while the browser asked
    video.srcObject = stream;
    await video.play();
    byId("snap").disabled = false;
    byId("snap").focus();
    say(status, "");
  } catch (error) {
    if (dialog.open) say(status, WRONG[error.name] ?? "The camera does not work here.", "error");
  }
}

async function snap() {
  if (!video.videoWidth) return; // nothing to see yet
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  const file = new File([blob], `camera-${Date.now()}.jpg`, { type: "image/jpeg" });
  if (!user.many) dialog.close();
  const sent = await user.take([file]);
  if (!user.many) return;
  if (!sent) return dialog.close(); // so that what went wrong can be seen
  say(status, `${count((taken += 1), "photo", "photos")} taken.`);
}

const stop = (stream) => stream?.getTracks().forEach((track) => track.stop());

byId("snap").addEventListener("click", snap);
dialog.addEventListener("close", () => {
  stop(video.srcObject);
  video.srcObject = null;
});
