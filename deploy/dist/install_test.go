package main

import (
	"debug/buildinfo"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// source is a file of the module.
type source struct{ root, path string }

func (s source) Path() string                 { return s.path }
func (s source) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join(s.root, s.path)) }
func (s source) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(s.root, s.path)) }

// sources returns the files of the module, without nested modules.
func sources(t *testing.T, root string) (files []zip.File) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case rel == ".git" || rel == "bin":
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.IsDir() && rel != ".":
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			files = append(files, source{root, filepath.ToSlash(rel)})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// proxy writes a module proxy that has one version of quorate, and returns its address.
func proxy(t *testing.T, version string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at := filepath.Join(dir, "github.com", "quorate", "quorate", "@v")
	if err := os.MkdirAll(at, 0o755); err != nil { //nolint:gosec // a proxy
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"list": version + "\n", version + ".mod": string(mod),
		version + ".info": `{"Version":"` + version + `","Time":"2026-01-01T00:00:00Z"}`} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	err = zip.Create(f, module.Version{Path: "github.com/quorate/quorate", Version: version}, sources(t, root))
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return "file://" + dir
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestInstall_FromProxyFetchesOnlyWhatIsLinked installs the program with go install ...@latest and an empty module
// cache. The go.mod of Quorate must have no replace directive. No module may be downloaded that only tests or other
// modules need.
func TestInstall_FromProxyFetchesOnlyWhatIsLinked(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads modules into an empty cache and builds the program")
	}
	const version = "v0.0.1"
	cache, bin := t.TempDir(), t.TempDir()
	from := []string{proxy(t, version), "file://" + filepath.ToSlash(goEnv(t, "GOMODCACHE")) + "/cache/download",
		goEnv(t, "GOPROXY")}
	cmd := exec.CommandContext(t.Context(), "go", "install", "-trimpath", "-ldflags=-s -w",
		"github.com/quorate/quorate/cmd/quorate@latest")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -modcacherw", "GOPROXY="+strings.Join(from, ","), "GOSUMDB=off",
		"GOMODCACHE="+cache, "GOBIN="+bin, "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	binary := filepath.Join(bin, "quorate")
	out, err := exec.CommandContext(t.Context(), binary, "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "quorate "+strings.TrimPrefix(version, "v")+" ") {
		t.Errorf("%v: %s", err, out)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	linked := []string{"github.com/quorate/quorate"}
	for _, d := range info.Deps {
		linked = append(linked, d.Path)
	}
	fetched := downloaded(t, filepath.Join(cache, "cache", "download"))
	t.Logf("%d modules downloaded, %d linked", len(fetched), len(linked))
	for _, m := range fetched {
		if !slices.Contains(linked, m) {
			t.Errorf("%s was downloaded, but nothing of it is in the program", m)
		}
	}
}

// downloaded returns the modules whose sources are in a module cache.
func downloaded(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".zip") {
			return err
		}
		rel, err := filepath.Rel(dir, filepath.Dir(filepath.Dir(path)))
		if err != nil {
			return err
		}
		name, err := module.UnescapePath(filepath.ToSlash(rel))
		paths = append(paths, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
