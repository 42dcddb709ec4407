package snapshot

import (
	"io"

	"github.com/quorate/quorate/raftfsm/raftlog"
)

// stepper is a Process that reports its steps.
type stepper func(string)

func (s stepper) Step(name string) { s(name) }

// The functions below call functions of this package with the file system of the operating system.

func writeManifest(dir string, m *Manifest, step func(string)) error {
	return StoreManifest(raftlog.OSVolume{}, dir, m, stepper(step))
}

func listFiles(dir string) ([]streamFile, error) { return list(raftlog.OSVolume{}, dir) }

func writeStream(w io.Writer, dir string, files []streamFile, applied uint64) error {
	return pack(raftlog.OSVolume{}, w, dir, files, applied)
}

func readStream(r io.Reader, dir string) (Received, error) { return Unpack(raftlog.OSVolume{}, r, dir) }
