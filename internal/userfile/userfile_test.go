package userfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quorate/quorate/internal/userfile"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead_DoesNotWaitForPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, link, "/dev/zero", filepath.Dir(path), filepath.Join(path, "absent")} {
		if text, err := userfile.Read(path); err == nil {
			t.Errorf("%s: read %d bytes", path, len(text))
		}
	}
	if text, err := userfile.Read(os.DevNull); err != nil || len(text) != 0 {
		t.Errorf("%s: %q, %v", os.DevNull, text, err)
	}
}

func TestRead_SizeIsBounded(t *testing.T) {
	most := strings.Repeat("x", userfile.MaxSize)
	if text, err := userfile.Read(write(t, most)); err != nil || string(text) != most {
		t.Errorf("the largest file: %d bytes, %v", len(text), err)
	}
	if _, err := userfile.Read(write(t, most+"x")); err == nil {
		t.Error("a larger file was read")
	}
}

func TestText_EveryFormOfUnicode(t *testing.T) {
	for name, text := range map[string]string{
		"plain": "aé", "UTF-8 with a mark": "\ufeffaé", "UTF-16LE": "\xff\xfea\x00\xe9\x00",
		"UTF-16BE": "\xfe\xff\x00a\x00\xe9",
	} {
		for reader, read := range map[string]func(string) ([]byte, error){"Read": userfile.Read,
			"ReadOnce": userfile.ReadOnce} {
			if got, err := read(write(t, text)); err != nil || string(got) != "aé" {
				t.Errorf("%s, %s: %q, %v", name, reader, got, err)
			}
		}
	}
	if got := userfile.Text([]byte("\xff\xfea\x00b")); string(got) != "a" {
		t.Errorf("half a character at the end: %q", got)
	}
}

func TestYAML_MarksAndVersions(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\n":                       "a: 1\n",
		"\ufeffa: 1\n":                 "a: 1\n",
		"a: 1\n---\n\ufeffb: 2\n":      "a: 1\n---\nb: 2\n",
		"a: 1\n\ufeff---\r\nb: 2\n":    "a: 1\n---\r\nb: 2\n",
		"%YAML 1.2\n---\na: 1\n":       "%YAML 1.1\n---\na: 1\n",
		"\ufeff%YAML\t1.2 # x\n---\n":  "%YAML 1.1 # x\n---\n",
		"a: 1\n...\n%YAML 1.2\r\n---":  "a: 1\n...\n%YAML 1.1\r\n---",
		"%YAML 1.20\n":                 "%YAML 1.20\n",
		"a: '%YAML 1.2'\n":             "a: '%YAML 1.2'\n",
		"a: |\n  \ufeffx\n  %YAML 1.2": "a: |\n  \ufeffx\n  %YAML 1.2",
	} {
		if got := userfile.YAML([]byte(text)); string(got) != want {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("\xff\xfea\x00"))
	f.Add([]byte("\xef\xbb\xbf\n\xef\xbb\xbf%YAML 1.2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := userfile.YAML(b); bytes.Count(got, []byte("\n")) != bytes.Count(userfile.Text(b), []byte("\n")) {
			t.Errorf("%q has other lines: %q", b, got)
		}
	})
}
