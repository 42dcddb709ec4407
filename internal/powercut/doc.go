// Package powercut simulates power cuts of a program. It computes what a disk contains if all processes stop at the
// same moment and data that was not synced is lost.
//
// It needs no root rights and no special kernel. WriteOverlay changes package syscall for one build, so that the
// program reports its file operations. RecordFiles writes these operations to a file, the trace. A Disk replays a
// trace and knows which data is synced. Disk.Image writes a directory as a power cut leaves it. Of the unsynced writes
// of a file, the first ones or a random part survive. Of the unsynced name changes of a directory, the first ones
// survive.
//
// The package owns the overlay, the format of a trace, and the model of the disk.
package powercut
