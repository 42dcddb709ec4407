package file_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/local/file"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const sample = `{
  "redisPassword": "hunter2", "port": 1e3, "precise": 0.10000000000000000001, "on": true, "off": false, "none": null, "empty": "",
  "connectionStrings": {"sql": "s", "more": {"mysql": "m", "list": ["x", {"y": 7}]}},
  "../etc/passwd": "only a name"
}`

// flat returns the secrets of sample, each with one key.
func flat() map[string]map[string]string {
	out := map[string]map[string]string{}
	for name, value := range map[string]string{
		"redisPassword": "hunter2", "port": "1e3", "precise": "0.10000000000000000001", "on": "true", "off": "false",
		"empty":                 "",
		"connectionStrings:sql": "s", "connectionStrings:more:mysql": "m", "connectionStrings:more:list:0": "x",
		"connectionStrings:more:list:1:y": "7",
		"../etc/passwd":                   "only a name",
	} {
		out[name] = map[string]string{name: value}
	}
	return out
}

func multi() map[string]map[string]string {
	out := flat()
	for name := range out {
		if strings.HasPrefix(name, "connectionStrings:") {
			delete(out, name)
		}
	}
	out["connectionStrings"] = map[string]string{"sql": "s", "more.mysql": "m", "more.list.0": "x",
		"more.list.1.y": "7"}
	return out
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func options(t testing.TB, text string) file.Options {
	return file.Options{Path: write(t, filepath.Join(t.TempDir(), "secrets.json"), text),
		Logger: slog.New(slog.DiscardHandler)}
}

func TestStore_Conformance(t *testing.T) {
	secretstorestest.Run(t, func(t *testing.T) secretstores.Store {
		s, err := file.Open(options(t, sample))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, secretstorestest.Options{Secrets: flat(), Absent: "none", Twins: []string{"connectionStrings", "REDISPASSWORD",
		"connectionStrings.sql"}})
}

func TestStore_ConformanceWithSeveralKeys(t *testing.T) {
	secretstorestest.Run(t, func(t *testing.T) secretstores.Store {
		o := options(t, sample)
		o.MultiValued, o.Separator = true, "."
		s, err := file.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, secretstorestest.Options{Secrets: multi(), Absent: "connectionStrings.sql"})
}

func TestOpen_InvalidFileErrorHasLineAndNoValues(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		multi bool
		want  string
	}{
		"not JSON": {"{\n \"a\": hunter2}", false, ":2: this is not JSON"},
		"cut short": {"{\n\n\"a\": \"hunter2\"", false,
			":3: this is not JSON: the file ends too early"},
		"empty":            {"", false, ":1: this is not JSON: the file ends too early"},
		"a list":           {`["hunter2"]`, false, ":1: the file must hold a JSON object"},
		"something behind": {"{}\n{\"a\":\"hunter2\"}", false, ":2: something follows the JSON object"},
		"a name twice": {"{\"a\": \"hunter2\",\n\"a\": \"hunter2\"}", false,
			`:2: the secret "a" is given twice`},
		"a flattened name twice": {"{\"a\": {\"b\": \"hunter2\"},\n\"a:b\": 2}", false,
			`:2: the secret "a:b" is given twice`},
		"a key twice": {"{\"a\": {\"b\": \"hunter2\",\n\"b\": 2}}", true,
			`:2: the secret "a", key "b", is given twice`},
		"a secret and a key with it": {"{\"a\": {\"a\": \"hunter2\"},\n\"a\": 2}", true,
			`:2: the secret "a" is given twice`},
		"too deep": {strings.Repeat(`{"a":`, 80) + "1" + strings.Repeat("}", 80), false,
			":1: the file is nested deeper than 64 levels"},
		"too large": {`{"a": "` + strings.Repeat("x", file.MaxFileSize) + `"}`, false,
			":1: the file has more than"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, c.text)
			o.MultiValued = c.multi
			_, err := file.Open(o)
			if !fault.Is(err, fault.Corrupt) || !strings.Contains(fault.Text(err), o.Path+c.want) ||
				strings.Contains(err.Error(), "hunter2") {
				t.Errorf("Open: %v; want %q", err, c.want)
			}
		})
	}
}

func TestOpen_UnreadableFile(t *testing.T) {
	o := options(t, "{}")
	o.Path += ".none"
	if _, err := file.Open(o); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), o.Path) ||
		fault.HintOf(err) == "" {
		t.Errorf("Open: %v", err)
	}
}

func TestOpen_FileWithByteOrderMark(t *testing.T) {
	for _, text := range []string{"\ufeff{\"a\": \"1\"}", "\xff\xfe{\x00}\x00"} {
		if _, err := file.Open(options(t, text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestGet_DoesNotWaitForPipe(t *testing.T) {
	o := options(t, "{}")
	s, err := file.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(o.Path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(o.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "a", nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Get: %v", err)
	}
}

func TestGet_ReadsChangedFileAndRefusesBrokenOne(t *testing.T) {
	o := options(t, `{"a": "1"}`)
	s, err := file.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(text string) { // as an orchestrator does: a new file replaces the old one
		t.Helper()
		if err := os.Rename(write(t, o.Path+".new", text), o.Path); err != nil {
			t.Fatal(err)
		}
	}
	want := func(value string, code fault.Code) {
		t.Helper()
		got, err := s.Get(t.Context(), "a", nil)
		if fault.CodeOf(err) != code || got["a"] != value {
			t.Errorf("Get = %v, %v; want %q, %q", got, err, value, code)
		}
	}
	want("1", "")
	replace(`{"a": "2"}`)
	want("2", "")
	replace(`{"a": `)
	want("", fault.Corrupt)
	replace(`{}`)
	want("", fault.NotFound)
	if err := os.Remove(o.Path); err != nil {
		t.Fatal(err)
	}
	want("", fault.Unavailable)
	replace(`{"a": "3"}`)
	want("3", "")
	write(t, o.Path, `{"a": "4"}`) // the same file, with a content of the same size
	if err := os.Chtimes(o.Path, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	want("4", "")
}

func TestOpen_WarnsAboutWorldReadableFile(t *testing.T) {
	for mode, warns := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		var log bytes.Buffer
		o := options(t, sample)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if err := os.Chmod(o.Path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := file.Open(o); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "chmod o-r"); got != warns ||
			strings.Contains(log.String(), "hunter2") {
			t.Errorf("mode %o: %s", mode, &log)
		}
	}
}

// Open refuses a file, or every secret in the result of Bulk can be read with Get.
func FuzzOpen(f *testing.F) {
	for _, text := range []string{sample, `{"a":{"b":[1,null,{"c":"d"}]}}`, `{"a":1,"a":2}`, "[", "{}",
		`{"":{"":""}}`} {
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text string, several bool) {
		o := options(t, text)
		o.MultiValued = several
		s, err := file.Open(o)
		if err != nil {
			if fault.CodeOf(err) != fault.Corrupt {
				t.Fatalf("code %q: %v", fault.CodeOf(err), err)
			}
			return
		}
		all, err := s.Bulk(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range all {
			got, err := s.Get(t.Context(), name, nil)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Fatal(fmt.Sprint(name, err, diff))
			}
		}
	})
}
