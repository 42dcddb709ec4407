// Package file implements the secret store secretstores.local.file. Its secrets are in a JSON file on this machine. It
// is meant for development, and for files that an orchestrator mounts. The package owns the format of the file.
//
// The package reads the whole file and keeps the secrets in memory. If the file has changed, the next call reads the
// file again. The package never uses the name of a secret as a path. It starts no goroutines.
package file

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

// Type is the component type.
const Type = "secretstores.local.file"

// DefaultSeparator is the separator between the parts of a flattened name.
const DefaultSeparator = ":"

// MaxFileSize is the largest file that is read, in bytes.
const MaxFileSize = 4 << 20

// Options are the file to read and its format.
type Options struct {
	Path        string // relative to the working directory of the process
	Separator   string // separates the parts of a flattened name; empty = DefaultSeparator
	MultiValued bool   // each field of the file is a secret with several keys
	Logger      *slog.Logger
}

// Store serves the secrets in a file. It is safe for concurrent use.
type Store struct {
	options Options
	gate    secretstores.Gate

	mu      sync.Mutex
	info    fs.FileInfo // properties of the file when secrets was read
	secrets map[string]map[string]string
}

// Open reads the file and returns a store. If the content is malformed, Open returns fault.Corrupt with the file and
// the line. If the file cannot be read, Open returns fault.Unavailable or fault.Denied.
func Open(o Options) (*Store, error) {
	if o.Separator == "" {
		o.Separator = DefaultSeparator
	}
	o.Path = filepath.Clean(o.Path)
	s := &Store{options: o}
	if _, err := s.current(); err != nil {
		return nil, err
	}
	if s.info.Mode().Perm()&0o004 != 0 {
		o.Logger.Warn("the file with secrets can be read by every user of this machine", "file", o.Path, "hint",
			"chmod o-r")
	}
	return s, nil
}

// Get implements secretstores.Store.
func (s *Store) Get(ctx context.Context, name string, _ map[string]string) (map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	secrets, err := s.current()
	if err != nil {
		return nil, err
	}
	secret, ok := secrets[name]
	if !ok {
		return nil, secretstores.Absent(name, "the file has no such secret")
	}
	return maps.Clone(secret), nil
}

// Bulk implements secretstores.Store.
func (s *Store) Bulk(ctx context.Context, _ map[string]string) (map[string]map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	secrets, err := s.current()
	if err != nil {
		return nil, err
	}
	out := make(map[string]map[string]string, len(secrets))
	for name, secret := range secrets {
		out[name] = maps.Clone(secret)
	}
	return out, nil
}

// Features implements secretstores.Featurer.
func (s *Store) Features() []secretstores.Feature {
	if s.options.MultiValued {
		return []secretstores.Feature{secretstores.FeatureMultipleKeyValues}
	}
	return nil
}

// Close implements secretstores.Store.
func (s *Store) Close() error {
	s.gate.Close()
	return nil
}

// current returns the secrets that the file contains now. The caller must not change the map. If the file can no
// longer be read, current returns an error. It does not return the previous secrets, which may have been revoked.
func (s *Store) current() (map[string]map[string]string, error) {
	info, err := os.Stat(s.options.Path)
	if err != nil {
		return nil, s.problem(err)
	}
	s.mu.Lock()
	known, secrets := s.info, s.secrets
	s.mu.Unlock()
	if known != nil && os.SameFile(known, info) && known.ModTime().Equal(info.ModTime()) &&
		known.Size() == info.Size() {
		return secrets, nil
	}
	info, secrets, err = s.read()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info, s.secrets = info, secrets
	return secrets, nil
}

func (s *Store) read() (fs.FileInfo, map[string]map[string]string, error) {
	f, info, err := userfile.Open(s.options.Path)
	if err != nil {
		return nil, nil, s.problem(err)
	}
	defer f.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, nil, s.problem(err)
	}
	secrets, err := parse(s.options, userfile.Text(data))
	return info, secrets, err
}

func (s *Store) problem(err error) error {
	e := &fault.Error{Code: fault.Unavailable, Op: "file.Read", Msg: "reading the secrets of " + s.options.Path,
		Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Hint = "create the file, or correct secretsFile; a relative path begins where the node was started"
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Hint = fault.Denied, "let the user of the node read it"
	}
	return e
}
