//! One step of the main job: a frame in, detections out, a stopwatch at each seam.
