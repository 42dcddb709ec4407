// Package powercut simulates power cuts of a program. It computes what a disk contains if all processes stop at the
// same moment and data that was not synced is lost.
//
// A simulation has four steps:
//
//   - WriteOverlay changes package syscall for one build, so that the program can report its file operations.
//   - RecordFiles writes these operations to a file, the trace.
//   - A Disk replays the trace, and distinguishes synced from unsynced changes.
//   - Disk.Image writes a directory as a power cut could leave it. For example, only the oldest unsynced changes of a
//     file survive, or a random part of them.
//
// A simulation needs no root rights and no special kernel. The package owns the overlay, the format of a trace, and the
// model of the disk.
package powercut
