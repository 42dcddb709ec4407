package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/internal/fault"
)

// streamOf packs files into a stream, and returns it with the directory of the files.
func streamOf(t testing.TB, files map[string]string, applied uint64) ([]byte, string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	list, err := listFiles(dir)
	must(t, err)
	var b bytes.Buffer
	must(t, writeStream(&b, dir, list, applied))
	if int64(b.Len()) != streamSize(list) {
		t.Fatalf("the stream has %d bytes, streamSize returned %d", b.Len(), streamSize(list))
	}
	return b.Bytes(), dir
}

func content(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range names(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		out[name] = string(b)
	}
	return out
}

var streamFiles = map[string]string{
	"000004.sst": strings.Repeat("sorted", 50_000), "MANIFEST-000001": "manifest", "OPTIONS-000003": "",
	"marker.format-version.000001.013": "\x00\x01",
}

func TestStream_RoundTrips(t *testing.T) {
	b, from := streamOf(t, streamFiles, 77)
	to := t.TempDir()
	got, err := readStream(bytes.NewReader(b), to)
	must(t, err)
	if d := cmp.Diff(content(t, from), content(t, to)); d != "" {
		t.Error("files differ")
	}
	if got.Restore || got.applied != 77 || got.bytes != 300_000+8+2 {
		t.Errorf("got %+v", got)
	}
	copy(b, restoreMagic)
	if _, err := readStream(bytes.NewReader(b), t.TempDir()); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a changed magic was accepted: %v", err)
	}
}

func TestStream_EmptyDirectory(t *testing.T) {
	b, _ := streamOf(t, nil, 1)
	to := t.TempDir()
	if _, err := readStream(bytes.NewReader(b), to); err != nil || len(names(t, to)) != 0 {
		t.Fatalf("got %v, %v", err, names(t, to))
	}
}

func TestStream_RefusesChangedByte(t *testing.T) {
	whole, _ := streamOf(t, map[string]string{"a": "first", "b": "", "c": "third file"}, 5)
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		if _, err := readStream(bytes.NewReader(b), t.TempDir()); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("byte %d of %d changed: %v", i, len(whole), err)
		}
	}
}

func TestStream_RefusesTruncation(t *testing.T) {
	whole, _ := streamOf(t, map[string]string{"a": "first", "b": ""}, 5)
	for n := range whole {
		if _, err := readStream(bytes.NewReader(whole[:n]), t.TempDir()); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("cut after %d of %d bytes: %v", n, len(whole), err)
		}
	}
}

func TestStream_RefusesBytesAfterEnd(t *testing.T) {
	whole, _ := streamOf(t, map[string]string{"a": "first"}, 5)
	for _, tail := range []string{"\x00", string(whole)} {
		if _, err := readStream(strings.NewReader(string(whole)+tail), t.TempDir()); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%d bytes after the end: %v", len(tail), err)
		}
	}
}

// forge makes a stream with valid checksums from any names and sizes. Each file has at most 10 bytes of content.
func forge(files ...streamFile) []byte {
	b := binary.BigEndian.AppendUint64([]byte(streamMagic), 5)
	framing := bytes.Clone(b)
	for _, f := range files {
		h := binary.BigEndian.AppendUint16([]byte{1}, uint16(len(f.name)))
		h = append(h, f.name...)
		h = binary.BigEndian.AppendUint64(h, uint64(f.size))
		framing = append(framing, h...)
		body := bytes.Repeat([]byte{'x'}, int(min(max(f.size, 0), 10)))
		b = append(append(b, h...), body...)
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
	}
	b, framing = append(b, 0), append(framing, 0)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(framing, castagnoli))
}

func TestStream_NeverWritesOutsideDirectory(t *testing.T) {
	for name, files := range map[string][]streamFile{
		"parent":               {{"../escaped", 3}},
		"deep":                 {{"a/b", 3}},
		"absolute":             {{"/tmp/escaped", 3}},
		"dot":                  {{".", 3}},
		"dots":                 {{"..", 3}},
		"root":                 {{"/", 3}},
		"no name":              {{"", 3}},
		"NUL":                  {{"a\x00b", 3}},
		"long name":            {{strings.Repeat("n", maxFileName+1), 3}},
		"the same twice":       {{"a", 3}, {"a", 3}},
		"endless":              {{"a", 1<<62 + 1}},
		"negative":             {{"a", -1}},
		"longer than its size": {{"a", 11}},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "received")
			must(t, os.Mkdir(dir, 0o700))
			if _, err := readStream(bytes.NewReader(forge(files...)), dir); err == nil {
				t.Error("accepted")
			}
			if got := names(t, parent); len(got) != 1 {
				t.Errorf("written outside: %v", got)
			}
		})
	}
	if _, err := readStream(bytes.NewReader(forge(streamFile{"a", 10})), t.TempDir()); err != nil {
		t.Errorf("a forged stream with valid content was refused: %v", err)
	}
}

func TestStream_EndsWhenFileShrinks(t *testing.T) {
	_, dir := streamOf(t, map[string]string{"a": "as it was listed"}, 5)
	list, err := listFiles(dir)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("shorter"), 0o600))
	if err := writeStream(io.Discard, dir, list, 5); err == nil {
		t.Error("the shorter file was not detected")
	}
}

func TestStream_RefusesNestedDirectory(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	if _, err := listFiles(dir); err == nil {
		t.Error("accepted")
	}
}

type brokenWriter struct{ room int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errors.New("connection lost")
	}
	return len(p), nil
}

func TestStream_EndsWithLostConnection(t *testing.T) {
	whole, dir := streamOf(t, map[string]string{"a": "first", "b": "second"}, 5)
	list, err := listFiles(dir)
	must(t, err)
	for room := range whole {
		if err := writeStream(&brokenWriter{room}, dir, list, 5); err == nil {
			t.Fatalf("no error after %d of %d bytes", room, len(whole))
		}
	}
}

func FuzzReadStream(f *testing.F) {
	whole, _ := streamOf(f, map[string]string{"a": "first", "b": ""}, 5)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(forge(streamFile{"../x", 3}))
	f.Add(forge(streamFile{"x", 9}, streamFile{"y", 0}))
	f.Add([]byte(restoreMagic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "received")
		must(t, os.Mkdir(dir, 0o700))
		got, err := readStream(bytes.NewReader(b), dir)
		if outside := names(t, parent); len(outside) != 1 {
			t.Fatalf("written outside: %v", outside)
		}
		if err != nil {
			return
		}
		list, err := listFiles(dir)
		must(t, err)
		sum := int64(0)
		for _, file := range list {
			sum += file.size
		}
		if got.bytes != sum || streamSize(list) != int64(len(b)) {
			t.Fatalf("%d bytes of stream became %d bytes of files, reported as %d", len(b), sum, got.bytes)
		}
	})
}

func TestStream_RefusesNewerFormWithHint(t *testing.T) {
	b, _ := streamOf(t, map[string]string{"a": "first"}, 5)
	b[6] = '2'
	to := t.TempDir()
	_, err := readStream(bytes.NewReader(b), to)
	wantCode(t, err, fault.Unimplemented)
	if text := fault.Text(err); !strings.Contains(text, "form 2") || !strings.Contains(text, "up to 1") ||
		len(names(t, to)) != 0 {
		t.Errorf("%s; left behind: %v", text, names(t, to))
	}
}
