package credentials

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/quorate/quorate/internal/trust"
)

type apiTokens struct{ set []string }

func (a *apiTokens) Set(tokens []string) error { a.set = tokens; return nil }

// files creates a file with a text and a named pipe, and returns their paths.
func files(t *testing.T, text string) (path, pipe string) {
	t.Helper()
	dir := t.TempDir()
	path, pipe = filepath.Join(dir, "file"), filepath.Join(dir, "pipe")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, pipe
}

func TestAPITokenFile_ReloadOfUnusualFiles(t *testing.T) {
	path, pipe := files(t, "\ufeffone\ntwo\n")
	var got apiTokens
	f := APITokenFile{Path: path, Tokens: &got, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if f.reload(); !slices.Equal(got.set, []string{"one", "two"}) {
		t.Errorf("tokens of a file with a byte order mark: %q", got.set)
	}
	f.Path = pipe
	if f.reload(); f.problem == "" { // a reload that waits for the pipe never ends
		t.Error("a pipe was read")
	}
}

func TestFiles_ReadOfUnusualFiles(t *testing.T) {
	token := trust.NewToken()
	path, pipe := files(t, "\ufeff"+token.Reveal()+"\n")
	m, _, _, err := Files{Token: path}.Read()
	if err != nil || len(m.Tokens) != 1 || m.Tokens[0] != token {
		t.Errorf("a token file with a byte order mark: %v", err)
	}
	if _, _, _, err := (Files{Token: pipe}).Read(); err == nil || !strings.Contains(err.Error(), pipe) {
		t.Errorf("a pipe: %v", err)
	}
}
