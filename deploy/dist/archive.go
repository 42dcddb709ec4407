package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
)

// entry is a file of an archive.
type entry struct {
	from, to string
	mode     int64
}

// archive writes a .tar.gz file. The archive contains one folder with the program, its bill of materials, and other
// files such as the license and the systemd unit. The parameter name is the name of the folder. The name of the archive
// is the same, with the extension .tar.gz.
func (r release) archive(name, binary, bom string) (err error) {
	f, err := os.Create(filepath.Join(r.out, name+".tar.gz"))
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(f)
	out := tar.NewWriter(zip)
	defer func() { err = errors.Join(err, out.Close(), zip.Close(), f.Close()) }()
	for _, e := range []entry{
		{binary, "quorate", 0o755},
		{bom, "quorate.cdx.json", 0o644},
		{filepath.Join(r.root, "LICENSE"), "LICENSE", 0o644},
		{filepath.Join(r.root, "README.md"), "README.md", 0o644},
		{filepath.Join(r.root, "CHANGELOG.md"), "CHANGELOG.md", 0o644},
		{filepath.Join(r.root, "deploy/systemd/quorate.service"), "systemd/quorate.service", 0o644},
		{filepath.Join(r.root, "deploy/systemd/quorate.yaml"), "systemd/quorate.yaml", 0o644},
		{filepath.Join(r.root, "deploy/components/statestore.yaml"), "components/statestore.yaml", 0o644},
	} {
		if err := r.add(out, e, path.Join(name, e.to)); err != nil {
			return err
		}
	}
	return nil
}

func (r release) add(out *tar.Writer, e entry, name string) error {
	in, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	h := tar.Header{Name: name, Size: info.Size(), Mode: e.mode, ModTime: r.time, Format: tar.FormatPAX}
	if err := out.WriteHeader(&h); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}
