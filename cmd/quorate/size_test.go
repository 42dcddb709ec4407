package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// linked builds the binary for linux/amd64 as make build does, with further flags, and returns its size in bytes.
func linked(t *testing.T, flags ...string) int64 {
	t.Helper()
	path := filepath.Join(t.TempDir(), "quorate")
	build := exec.Command("go", slices.Concat([]string{"build", "-trimpath", "-tags", "grpcnotrace", "-ldflags",
		"-s -w -funcalign=16", "-o", path}, flags, []string{"."})...)
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// If the binary is above the bound, a new dependency is probably too large.
func TestBinary_SizeIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it links the binary")
	}
	const most = 64 << 20
	size := linked(t)
	t.Logf("the binary has %d bytes", size)
	if size > most {
		t.Errorf("the binary has %d bytes, more than %d", size, most)
	}
}

func TestBinary_ConsoleIsSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("it links the binary twice")
	}
	const most = 512 << 10
	size := linked(t) - linked(t, "-overlay", withoutConsole(t))
	t.Logf("the console has %d bytes", size)
	if size > most {
		t.Errorf("the console has %d bytes, more than %d", size, most)
	}
}

// withoutConsole returns an overlay for go build with which a node serves no console: its function buildConsole does
// nothing, so the linker drops the pages.
func withoutConsole(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs("../../node/console.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "buildConsole" {
			at := func(p token.Pos) int { return files.Position(p).Offset }
			text = slices.Concat(text[:at(f.Body.Lbrace)], []byte("{ return nil }"), text[at(f.Body.Rbrace)+1:],
				[]byte("\nvar _, _ = apihttp.OpenAPI, listen.TCP // or their imports would not be used\n"))
			break
		}
	}
	changed, overlay := filepath.Join(dir, "console.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{changed: text, overlay: replace} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}
