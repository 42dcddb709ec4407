package backup_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

func header(partitions int) backup.Header {
	h := backup.Header{Created: time.Unix(1_764_000_000, 0).UTC(), Node: "n1", Program: "v1", Cluster: "default",
		ClusterID: "c1", Partitions: uint32(partitions)}
	for i := range partitions {
		h.Groups = append(h.Groups, backup.Group{ID: uint32(i), Index: 10, Term: 2, Applied: 9, Revision: 7, Clock: 5})
	}
	return h
}

func records(store string, n int) []backup.Record {
	var out []backup.Record
	for i := range n {
		out = append(out, backup.Record{Store: store, Key: fmt.Sprintf("a||%03d", i),
			Value: []byte(strings.Repeat("v", i)), ExpireAt: uint64(i % 3), ContentType: strings.Repeat("t", i%2)})
	}
	return out
}

// file returns a backup with two groups.
func file(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := backup.NewWriter(&out, header(2))
	check(t, err)
	for id := range uint32(2) {
		check(t, w.Begin(id))
		check(t, w.Records(records("/orders", 5)))
		check(t, w.Records(records("/users", 3)))
		check(t, w.Remembered([]backup.Remembered{{Key: "\x01ab", ExpireAt: 9, Fingerprint: 1 << 63,
			Result: []byte{1, 0, 0, 0}}}))
		_, err := w.End()
		check(t, err)
	}
	totals, err := w.Close()
	check(t, err)
	if totals.Keys != 16 || totals.Remembered != 2 {
		t.Errorf("totals %+v", totals)
	}
	return out.Bytes()
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// readAll returns the parts of a backup until the end or the first error. At the end, the error is io.EOF.
func readAll(b []byte) (parts []backup.Part, err error) {
	r, err := backup.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for {
		p, err := r.Next()
		if err != nil {
			return parts, err
		}
		parts = append(parts, p)
	}
}

func split(id string) (string, string) {
	ns, name, _ := strings.Cut(id, "/")
	return ns, name
}

func TestReader_ReadsWhatWriterWrote(t *testing.T) {
	parts, err := readAll(file(t))
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	var got []backup.Record
	for _, p := range parts {
		if p.Group == 1 {
			got = append(got, p.Records...)
		}
	}
	want := append(records("/orders", 5), records("/users", 3)...)
	for i := range want {
		if len(want[i].Value) == 0 {
			want[i].Value = []byte{}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	s, err := backup.Inspect(bytes.NewReader(file(t)), split)
	check(t, err)
	if len(s.Stores) != 2 || s.Stores[0].Name != "orders" || s.Stores[0].Keys != 10 || s.Totals.Keys != 16 ||
		len(s.Parts) != 2 || s.Totals.Bytes == 0 {
		t.Errorf("summary %+v", s)
	}
}

func TestReader_DetectsTruncatedFile(t *testing.T) {
	whole := file(t)
	for n := range len(whole) {
		_, err := readAll(whole[:n])
		want := fault.Corrupt
		if n < 8 {
			want = fault.Invalid // not recognised as a backup file
		}
		if !fault.Is(err, want) {
			t.Fatalf("truncated to %d of %d bytes: %v", n, len(whole), err)
		}
	}
	if _, err := readAll(append(whole, 0)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("with a byte more: %v", err)
	}
}

func TestReader_DetectsEveryFlippedBit(t *testing.T) {
	whole := file(t)
	for i := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			if _, err := readAll(b); errors.Is(err, io.EOF) {
				t.Fatalf("byte %d, bit %d: not found", i, bit)
			}
		}
	}
}

func TestReader_RefusesForeignAndNewerFiles(t *testing.T) {
	newer := file(t)
	newer[9] = backup.Version + 1
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"empty":   {nil, "not a backup"},
		"foreign": {[]byte("PK\x03\x04 something else"), "not a backup"},
		"newer":   {newer, "understands up to"},
	} {
		_, err := readAll(c.b)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(err), c.want) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A Reader refuses parts in a wrong order, even if all checksums are valid because a faulty writer has written them.
func TestReader_RefusesWrongOrder(t *testing.T) {
	write := func(f func(w *backup.Writer)) []byte {
		var out bytes.Buffer
		w, err := backup.NewWriter(&out, header(1))
		check(t, err)
		f(w)
		_, err = w.Close()
		check(t, err)
		return out.Bytes()
	}
	one := records("/s", 1)
	for name, b := range map[string][]byte{
		"a group left out":       write(func(*backup.Writer) {}),
		"the wrong group":        write(func(w *backup.Writer) { check(t, w.Begin(1)); _, _ = w.End() }),
		"a group without an end": write(func(w *backup.Writer) { check(t, w.Begin(0)) }),
		"a key twice": write(func(w *backup.Writer) {
			check(t, w.Begin(0))
			check(t,
				w.Records(append(one, one...)))
			_, _ = w.End()
		}),
		"a key twice, in frames": write(func(w *backup.Writer) {
			check(t, w.Begin(0))
			check(t, w.Records(one))
			check(t, w.Records(one))
			_, _ = w.End()
		}),
		"records after results": write(func(w *backup.Writer) {
			check(t, w.Begin(0))
			check(t, w.Remembered([]backup.Remembered{{Key: "k", ExpireAt: 1, Result: []byte{1}}}))
			check(t, w.Records(one))
			_, _ = w.End()
		}),
		"a store with NUL": write(func(w *backup.Writer) {
			check(t, w.Begin(0))
			check(t, w.Records(records("a\x00b", 1)))
			_, _ = w.End()
		}),
	} {
		if _, err := readAll(b); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := backup.NewWriter(io.Discard, backup.Header{Partitions: 2}); err == nil {
		t.Error("a header without its groups was written")
	}
}

func FuzzReader(f *testing.F) {
	whole := file(f)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("QRBACKUP\x00\x01\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		parts, err := readAll(b)
		if err == nil {
			t.Fatal("a reader that never ends")
		}
		if !errors.Is(err, io.EOF) {
			if !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.Invalid) {
				t.Fatalf("no reason: %v", err)
			}
			return
		}
		for _, p := range parts {
			for _, r := range p.Records {
				if r.Store == "" || r.Key == "" {
					t.Fatal("a record without a key")
				}
			}
		}
	})
}
