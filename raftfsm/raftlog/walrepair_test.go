package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func walEntry(i uint64) *raft.Log {
	return &raft.Log{Index: i, Term: 1, Data: fmt.Appendf(nil, "%d %s", i, large)}
}

// imagingMeta calls the function before each time the metadata of a log is about to change.
type imagingMeta struct {
	types.MetaStore
	before func()
}

func (m imagingMeta) CommitState(s types.PersistentState) error {
	m.before()
	return m.MetaStore.CommitState(s)
}

// betweenSegments returns copies of a log, made after a segment was sealed and before the metadata names the next
// segment. A crash at that moment leaves such a log. The key of a copy is the last entry that may have been
// acknowledged.
func betweenSegments(t *testing.T) map[uint64]string {
	t.Helper()
	images := map[uint64]string{}
	var last atomic.Uint64
	var mu sync.Mutex
	dir := t.TempDir()
	w, err := wal.Open(dir, wal.WithMetaStore(imagingMeta{&metadb.BoltMetaDB{}, func() {
		mu.Lock()
		defer mu.Unlock()
		image := filepath.Join(t.TempDir(), "image")
		testutil.CopyTree(t, dir, image)
		images[last.Load()] = image
	}}))
	must(t, err)
	for i := uint64(1); i <= 40; i++ {
		last.Store(i)
		must(t, w.StoreLogs([]*raft.Log{walEntry(i)}))
		must(t, w.DeleteRange(0, 0)) // waits for the metadata
	}
	must(t, w.Close())
	delete(images, 0) // the log was being created
	return images
}

// holds checks that a log has exactly the entries 1 to last.
func holds(t *testing.T, s Backend, last uint64) {
	t.Helper()
	if got, err := s.LastIndex(); got != last || err != nil {
		t.Fatalf("the log ends at %d (%v), want %d", got, err, last)
	}
	for i := uint64(1); i <= last; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil || l.Index != i || string(l.Data) != string(walEntry(i).Data) {
			t.Fatalf("entry %d: index %d, %d bytes, %v", i, l.Index, len(l.Data), err)
		}
	}
}

func TestRepairWAL_CrashBetweenSegments(t *testing.T) {
	refused := 0
	for last, dir := range betweenSegments(t) {
		plain := filepath.Join(t.TempDir(), "plain")
		testutil.CopyTree(t, dir, plain)
		w, err := wal.Open(plain) // without the repair
		must(t, err)
		if errors.Is(w.StoreLogs([]*raft.Log{walEntry(last + 1)}), wal.ErrSealed) {
			refused++
		}
		must(t, w.Close())

		e, err := openWAL(dir, slog.New(slog.DiscardHandler))
		must(t, err)
		holds(t, e, last)
		for i := last + 1; i <= last+20; i++ {
			must(t, e.StoreLog(walEntry(i)))
		}
		must(t, e.Close())
		e, err = openWAL(dir, slog.New(slog.DiscardHandler))
		must(t, err)
		holds(t, e, last+20)
		must(t, e.DeleteRange(1, last))
		must(t, e.DeleteRange(last+5, last+20))
		must(t, e.StoreLog(walEntry(last+5)))
		must(t, e.Close())
	}
	if refused < 4 {
		t.Errorf("raft-wal refused entries %d times: the test shows too little", refused)
	}
}

// A power loss may leave any part of the last append on disk.
func TestRepairWAL_ClearsTornAppend(t *testing.T) {
	refused := 0
	dir, before, last := sealing(t)
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	must(t, err)
	torn(t, before, dir, filepath.Base(segments[0]), last, &refused)
	if refused == 0 {
		t.Error("raft-wal accepted entries after each torn append: the test shows nothing")
	}
}

// dyingFile is the file of a segment. After the given number of writes, each write fails, as if the process had ended.
type dyingFile struct {
	*os.File
	writes int
}

func (f *dyingFile) WriteAt(b []byte, at int64) (int, error) {
	if f.writes == 0 {
		return 0, errors.New("killed")
	}
	f.writes--
	return f.File.WriteAt(b, at)
}

// The process is killed while clearAfter clears a torn append over several blocks. The file keeps its length, so the
// next start does not take the file for truncated, and clears the rest.
func TestClearAfter_KeepsTheLengthWhenKilledAtAnyWrite(t *testing.T) {
	const kept, size = 100, 1 << 20
	whole := make([]byte, size)
	for i := range 300 << 10 {
		whole[i] = byte(i%255 + 1)
	}
	path := filepath.Join(t.TempDir(), "segment")
	for writes := 0; ; writes++ {
		must(t, os.WriteFile(path, whole, 0o600))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		_, err = clearAfter(&dyingFile{f, writes}, kept)
		info, statErr := f.Stat()
		must(t, statErr)
		if info.Size() != size {
			t.Errorf("killed after %d writes: the segment has %d bytes", writes, info.Size())
		}
		if killed := err != nil; !killed {
			if writes < 3 {
				t.Errorf("cleared with %d writes: the test shows too little", writes)
			}
			must(t, f.Close())
			break
		}
		if changed, err := clearAfter(f, kept); err != nil || !changed {
			t.Errorf("killed after %d writes: the next start clears %t, %v", writes, changed, err)
		}
		must(t, f.Close())
		got, err := os.ReadFile(path)
		must(t, err)
		if !bytes.Equal(got[:kept], whole[:kept]) || len(bytes.Trim(got[kept:], "\x00")) != 0 {
			t.Errorf("killed after %d writes: the file is not cleared from byte %d on", writes, kept)
		}
	}
}

// sealing returns a log whose last entry has filled its first segment, and a copy of the log before that entry.
func sealing(t *testing.T) (after, before string, last uint64) {
	t.Helper()
	dir := t.TempDir()
	w, err := wal.Open(dir)
	must(t, err)
	defer w.Close()
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	must(t, err)
	for i := uint64(1); ; i++ {
		before = filepath.Join(t.TempDir(), "before")
		testutil.CopyTree(t, dir, before)
		must(t, w.StoreLogs([]*raft.Log{walEntry(i)}))
		after = filepath.Join(t.TempDir(), "after")
		testutil.CopyTree(t, dir, after)
		if sealed, _ := segmentState(t, after, filepath.Base(segments[0])); sealed {
			return after, before, i
		}
	}
}

// segmentState reports whether the last complete append to a segment has sealed the segment. It also returns the end
// of that append.
func segmentState(t *testing.T, dir, name string) (bool, segmentEnd) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	must(t, err)
	defer f.Close()
	end, err := scanSegment(f)
	must(t, err)
	return end.index > 0, end
}

// torn tries many incomplete forms of an append. before is the log before the append, and the file called name
// in after has the complete append. last is the index of the appended entry. torn counts in refused how often raft-wal
// without the repair refuses a further append.
func torn(t *testing.T, before, after, name string, last uint64, refused *int) {
	t.Helper()
	old, err := os.ReadFile(filepath.Join(before, name))
	must(t, err)
	whole, err := os.ReadFile(filepath.Join(after, name))
	must(t, err)
	_, end := segmentState(t, after, name)
	_, begin := segmentState(t, before, name)
	for len(old) < len(whole) {
		old = append(old, 0)
	}
	for from := begin.offset; from < end.offset; from += 64 {
		b := append([]byte(nil), whole...)
		copy(b[from:min(from+64, end.offset)], make([]byte, 64)) // 64 bytes are missing
		tryTorn(t, before, name, b, last-1, refused)
		b = append([]byte(nil), whole...)
		copy(b[from:], old[from:]) // everything from here on is missing
		tryTorn(t, before, name, b, last-1, refused)
	}
}

func tryTorn(t *testing.T, before, name string, content []byte, last uint64, refused *int) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "torn")
	testutil.CopyTree(t, before, dir)
	must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	plain := filepath.Join(t.TempDir(), "plain")
	testutil.CopyTree(t, dir, plain)
	if w, err := wal.Open(plain); err == nil {
		if errors.Is(w.StoreLogs([]*raft.Log{walEntry(last + 1)}), wal.ErrSealed) {
			*refused++
		}
		must(t, w.Close())
	}
	e, err := openWAL(dir, slog.New(slog.DiscardHandler))
	must(t, err)
	if got, _ := e.LastIndex(); got == last+1 {
		must(t, e.Close()) // the missing part was only zeros
		return
	}
	for i := last + 1; i <= last+3; i++ {
		must(t, e.StoreLog(walEntry(i)))
	}
	must(t, e.Close())
	e, err = openWAL(dir, slog.New(slog.DiscardHandler))
	must(t, err)
	holds(t, e, last+3)
	must(t, e.Close())
}

func FuzzScanSegment(f *testing.F) {
	dir := f.TempDir()
	w, err := wal.Open(dir)
	must(f, err)
	for i := uint64(1); i <= 3; i++ {
		must(f, w.StoreLogs([]*raft.Log{{Index: i, Term: 1, Data: []byte("v")}}))
	}
	must(f, w.Close())
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	must(f, err)
	b, err := os.ReadFile(segments[0])
	must(f, err)
	f.Add(b[:512])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		end, err := scanSegment(bytes.NewReader(b))
		must(t, err)
		if end.offset > int64(len(b)) || end.index > end.offset {
			t.Fatalf("%+v of %d bytes", end, len(b))
		}
	})
}

func TestOpenWAL_DamagedListOfSegmentsIsNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	must(t, os.Mkdir(dir, 0o700))
	w, err := wal.Open(dir)
	must(t, err)
	must(t, w.StoreLogs([]*raft.Log{walEntry(1)}))
	must(t, w.Close())
	for name, damage := range map[string]func(*types.SegmentInfo){
		"codec":      func(s *types.SegmentInfo) { s.Codec = 4 },
		"base index": func(s *types.SegmentInfo) { s.BaseIndex = 0 },
		"min index":  func(s *types.SegmentInfo) { s.MinIndex = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			testutil.CopyTree(t, dir, image)
			meta := &metadb.BoltMetaDB{}
			state, err := meta.Load(image)
			must(t, err)
			damage(&state.Segments[0])
			must(t, meta.CommitState(state))
			must(t, meta.Close())
			_, err = openWAL(image, slog.New(slog.DiscardHandler))
			if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), metadb.FileName) {
				t.Errorf("opened, or the error is not about the list: %v", err)
			}
		})
	}
}
