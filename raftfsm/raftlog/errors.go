package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/hashicorp/raft-wal/types"

	"github.com/quorate/quorate/internal/fault"
)

// DiskError returns the error for a failure to open the file at path. If err has a common cause, for example a full
// disk, the result also has a hint for operators.
func DiskError(err error, path string) error {
	e := &fault.Error{Code: fault.Internal, Op: "group.Open", Key: path, Msg: "cannot open " + path, Err: err}
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		e.Code, e.Hint = fault.Unavailable, "another process uses this data directory; stop it, or choose another "+
			"--data-dir"
	case errors.Is(err, syscall.EROFS), errors.Is(err, os.ErrPermission):
		e.Hint = "the disk is mounted read-only or this user may not write there"
	case errors.Is(err, syscall.ENOSPC):
		e.Hint = "the disk is full; free some space and start again, nothing acknowledged is lost"
	case errors.Is(err, bbolterrors.ErrVersionMismatch):
		e.Code, e.Hint = fault.Invalid, "this version understands only format 2 of the file: run the version of "+
			"quorate that wrote it, or a newer one; nothing was changed"
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum),
		errors.Is(err, types.ErrCorrupt), errors.Is(err, fs.ErrNotExist):
		e.Code, e.Hint = fault.Corrupt, "a file is missing, damaged or foreign; "+RejoinHint
	}
	return e
}

// RejoinHint is the hint of an error after which a server must not continue, because it may have lost acknowledged
// entries or its own votes.
const RejoinHint = "it must not continue as the same server. In a cluster: move its data directory away and start " +
	"it again; it joins as a new server. A single server: restore a backup into an empty directory " +
	"(docs/operations/disaster.md)"

// LostData returns the error for a file that has lost data. The code is fault.Corrupt. The text of the error is path,
// followed by the formatted message.
func LostData(path, format string, a ...any) error {
	return &fault.Error{Code: fault.Corrupt, Op: "group.Open", Key: path, Msg: path + " " + fmt.Sprintf(format, a...),
		Hint: RejoinHint}
}

func errNewer(path string, found, known uint64) error {
	return &fault.Error{Code: fault.Invalid, Op: "group.Open", Key: path,
		Msg:  fmt.Sprintf("%s has format %d, this version understands up to %d", path, found, known),
		Hint: "run the version that wrote it, or a newer one; nothing was changed"}
}

// CorruptFile returns the error for the damaged file at path, with a hint for operators. why describes the damage.
func CorruptFile(path, why string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "group.Open", Key: path,
		Msg:  fmt.Sprintf("%s is damaged: %s", path, why),
		Hint: RejoinHint}
}

func diskErrorOrNil(err error, path string) error {
	if err == nil {
		return nil
	}
	return DiskError(err, path)
}
