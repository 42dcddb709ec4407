package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"sort"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// The stream of a snapshot, version 1:
//
//	magic    8 bytes  "QRSNAP1\n", or "QRBACK1\n" for a restore by an operator
//	applied  8 bytes  machine's applied index, big endian
//	files    each: 0x01, name length (2 bytes), name, size (8 bytes), content, CRC-32C of the content (4 bytes)
//	end      0x00, CRC-32C of everything before except the contents (4 bytes)
//
// The size of a stream is known before the first byte is sent, because raft needs the size.
const (
	streamMagic  = "QRSNAP1\n"
	restoreMagic = "QRBACK1\n"

	maxFileName = 255
)

// streamFile is one file of a checkpoint.
type streamFile struct {
	name string
	size int64
}

// list returns the files of a checkpoint, ordered by name.
func list(v raftlog.Volume, dir string) ([]streamFile, error) {
	entries, err := v.List(dir)
	if err != nil {
		return nil, err
	}
	var files []streamFile
	for _, info := range entries {
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s in checkpoint %s is not a regular file", info.Name(), dir)
		}
		files = append(files, streamFile{name: info.Name(), size: info.Size()})
	}
	sort.Slice(files, func(i, j int) bool { return files[i].name < files[j].name })
	return files, nil
}

// streamSize returns the exact number of bytes that pack writes for files.
func streamSize(files []streamFile) int64 {
	n := int64(len(streamMagic) + 8 + 1 + 4)
	for _, f := range files {
		n += 1 + 2 + int64(len(f.name)) + 8 + f.size + 4
	}
	return n
}

// pack writes the files of dir as a stream.
func pack(v raftlog.Volume, w io.Writer, dir string, files []streamFile, applied uint64) error {
	head := crc32.New(castagnoli)
	out := io.MultiWriter(w, head)
	hdr := binary.BigEndian.AppendUint64([]byte(streamMagic), applied)
	if _, err := out.Write(hdr); err != nil {
		return err
	}
	for _, f := range files {
		b := binary.BigEndian.AppendUint16([]byte{1}, uint16(len(f.name)))
		b = append(b, f.name...)
		b = binary.BigEndian.AppendUint64(b, uint64(f.size))
		if _, err := out.Write(b); err != nil {
			return err
		}
		if err := writeFileBody(v, w, filepath.Join(dir, f.name), f.size); err != nil {
			return err
		}
	}
	if _, err := out.Write([]byte{0}); err != nil {
		return err
	}
	_, err := w.Write(binary.BigEndian.AppendUint32(nil, head.Sum32()))
	return err
}

func writeFileBody(v raftlog.Volume, w io.Writer, path string, size int64) error {
	f, err := v.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := crc32.New(castagnoli)
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(f, size))
	if err == nil && n != size {
		err = fmt.Errorf("%s shrank from %d to %d bytes while it was sent", path, size, n)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// Received describes a received stream.
type Received struct {
	Restore bool   // the magic is restoreMagic: index and revisions must be rewritten
	applied uint64 // the applied index that the sender reports
	bytes   int64  // total size of the files
}

// Unpack writes the files of the stream r into dir, which must exist and be empty. It verifies all checksums. The files
// and the directory are durable when Unpack returns nil.
func Unpack(v raftlog.Volume, r io.Reader, dir string) (Received, error) {
	in := &streamReader{volume: v, r: bufio.NewReaderSize(r, 256<<10), head: crc32.New(castagnoli)}
	var got Received
	hdr, err := in.take(len(streamMagic) + 8)
	if err != nil {
		return got, in.damaged("header", err)
	}
	switch string(hdr[:len(streamMagic)]) {
	case streamMagic:
	case restoreMagic:
		got.Restore = true
	default:
		if v := hdr[6]; (string(hdr[:6]) == streamMagic[:6] || string(hdr[:6]) == restoreMagic[:6]) && v > '1' &&
			v <= '9' && hdr[7] == '\n' {
			return got, &fault.Error{Code: fault.Unimplemented, Op: "group.snapshot",
				Msg:  fmt.Sprintf("the snapshot stream has form %c, this version understands up to 1", v),
				Hint: "upgrade this server; nothing was changed"}
		}
		return got, in.damaged("header", errors.New("not a snapshot"))
	}
	got.applied = binary.BigEndian.Uint64(hdr[len(streamMagic):])
	for {
		more, err := in.file(dir, &got)
		if err != nil {
			return got, err
		}
		if !more {
			return got, v.SyncDir(dir)
		}
	}
}

// streamReader parses a stream and computes the checksum of everything except the contents.
type streamReader struct {
	volume raftlog.Volume
	r      *bufio.Reader
	head   hash.Hash32
}

func (s *streamReader) take(n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(s.r, b); err != nil {
		return nil, err
	}
	s.head.Write(b)
	return b, nil
}

// file reads one file. It returns false at the end of the stream.
func (s *streamReader) file(dir string, got *Received) (bool, error) {
	mark, err := s.take(1)
	if err != nil {
		return false, s.damaged("file header", err)
	}
	if mark[0] == 0 {
		return false, s.end()
	}
	name, size, err := s.fileHeader(mark[0])
	if err != nil {
		return false, s.damaged("file header", err)
	}
	if err := s.fileBody(filepath.Join(dir, name), size); err != nil {
		return false, err
	}
	got.bytes += size
	return true, nil
}

func (s *streamReader) fileHeader(mark byte) (string, int64, error) {
	if mark != 1 {
		return "", 0, fmt.Errorf("unknown mark %d", mark)
	}
	b, err := s.take(2)
	if err != nil {
		return "", 0, err
	}
	n := int(binary.BigEndian.Uint16(b))
	if n == 0 || n > maxFileName {
		return "", 0, fmt.Errorf("file name of %d bytes", n)
	}
	nameBytes, err := s.take(n)
	if err != nil {
		return "", 0, err
	}
	name := string(nameBytes)
	if !plainName(name) {
		return "", 0, fmt.Errorf("file name %q leaves the directory", name)
	}
	b, err = s.take(8)
	if err != nil {
		return "", 0, err
	}
	size := binary.BigEndian.Uint64(b)
	if size > 1<<62 {
		return "", 0, fmt.Errorf("file of %d bytes", size)
	}
	return name, int64(size), nil
}

func (s *streamReader) fileBody(path string, size int64) error {
	f, err := s.volume.Create(path)
	if err != nil {
		return s.damaged(filepath.Base(path), err)
	}
	sum := crc32.New(castagnoli)
	_, err = io.CopyN(io.MultiWriter(f, sum), s.r, size)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return s.damaged(filepath.Base(path), err)
	}
	var want [4]byte
	if _, err := io.ReadFull(s.r, want[:]); err != nil {
		return s.damaged(filepath.Base(path), err)
	}
	if binary.BigEndian.Uint32(want[:]) != sum.Sum32() {
		return s.damaged(filepath.Base(path), errors.New("checksum does not match"))
	}
	return nil
}

func (s *streamReader) end() error {
	want := s.head.Sum32()
	var b [4]byte
	if _, err := io.ReadFull(s.r, b[:]); err != nil {
		return s.damaged("end", err)
	}
	if binary.BigEndian.Uint32(b[:]) != want {
		return s.damaged("end", errors.New("checksum does not match"))
	}
	if _, err := s.r.ReadByte(); !errors.Is(err, io.EOF) {
		return s.damaged("end", errors.New("bytes after the end"))
	}
	return nil
}

// damaged returns the error for a failure in the named part of a stream. If the disk has failed, it returns the error
// of the disk. Otherwise it returns fault.Corrupt, because the received stream differs from the one that was sent.
func (s *streamReader) damaged(part string, err error) error {
	var disk *fs.PathError
	if errors.As(err, &disk) && !errors.Is(err, fs.ErrExist) {
		return raftlog.DiskError(err, disk.Path)
	}
	return &fault.Error{Code: fault.Corrupt, Op: "group.snapshot", Msg: "snapshot stream is damaged at its " + part,
		Err:  err,
		Hint: "it was discarded; the snapshot will be requested again"}
}
