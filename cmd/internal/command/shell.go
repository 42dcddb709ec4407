package command

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
	"github.com/quorate/quorate/node"
)

// Shell has the environment, the standard streams and the signals that a command gets from its caller. All fields
// except Hostname and Home must be set.
type Shell struct {
	Env     []string // "NAME=value"
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Version Version

	Hostname func() (string, error) // returns the host name; nil = unknown
	Home     func() string          // the home directory of this user if HOME is not set; nil or "" = none

	// Signals starts to deliver the signals that stop a command. The returned function ends the delivery. Only
	// commands that have to clean up use it; others end with a signal as usual.
	// The returned function is idempotent.
	Signals func() (<-chan os.Signal, func())
}

// Version is the version of the program.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // empty = unknown
}

// Getenv returns the value of a variable in Env, or "" if the variable is not set. If Env has the variable several
// times, the last one counts, as in package os/exec.
func (s *Shell) Getenv(name string) string {
	value, _ := s.LookupEnv(name)
	return value
}

// LookupEnv is like Getenv, and also reports whether the variable is set.
func (s *Shell) LookupEnv(name string) (value string, set bool) {
	for i := len(s.Env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(s.Env[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// Resolve returns the configuration of a node from the settings of a command. It makes the data directory an absolute
// path. It does not validate the configuration.
func (s *Shell) Resolve(set *settings.Set, flags *pflag.FlagSet, command []string) (node.Config, error) {
	c, err := set.Resolve(settings.Input{
		Flags:      flags,
		Getenv:     s.Getenv,
		ReadFile:   userfile.ReadOnce,
		StateDir:   s.stateDir(),
		RuntimeDir: s.runtimeDir(),
		Host:       s.host(),
		Version:    s.Version.Version,
		Command:    command,
	})
	if err == nil && c.Data.Dir != "" {
		c.Data.Dir, err = filepath.Abs(c.Data.Dir)
	}
	return c, Usage(err)
}

// host returns the name of this machine, or "" if it is unknown.
func (s *Shell) host() string {
	if s.Hostname == nil {
		return ""
	}
	name, err := s.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// stateDir returns the user's directory for durable state, or "" if there is none.
func (s *Shell) stateDir() string {
	if dir := s.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	home := s.Getenv("HOME")
	if home == "" && s.Home != nil {
		home = s.Home()
	}
	switch {
	case home == "":
		return ""
	case runtime.GOOS == "darwin":
		return filepath.Join(home, "Library", "Application Support")
	default:
		return filepath.Join(home, ".local", "state")
	}
}

// runtimeDir returns the directory for the sockets of this user. It is XDG_RUNTIME_DIR/quorate if that variable is an
// absolute path. Otherwise it is a directory in the temporary directory, with the user's id in its name.
func (s *Shell) runtimeDir() string {
	if dir := s.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "quorate")
	}
	tmp := s.Getenv("TMPDIR")
	if tmp == "" {
		tmp = "/tmp"
	}
	return filepath.Join(tmp, "quorate-"+strconv.Itoa(os.Geteuid()))
}

// Interruptible returns a context that ends at the first signal, so that the command can clean up. The cause of the
// context is then a fault.Unavailable. A second signal ends the process, as usual. The caller must call the returned
// function when the command has ended.
func (s *Shell) Interruptible(ctx context.Context) (context.Context, func()) {
	signals, release := s.Signals()
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-signals:
			release()
			cancel(fault.New(fault.Unavailable, "cli", "interrupted"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		release()
	}
}

// Because returns the error "interrupted" if a signal has ended ctx, even if err is nil. Otherwise it returns err. The
// context ctx must come from Interruptible.
func Because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// IsTerminal reports whether stream, a reader or a writer, is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	terminal := false
	err = conn.Control(func(fd uintptr) { terminal = term.IsTerminal(int(fd)) }) //nolint:gosec // a descriptor fits
	return err == nil && terminal
}

func NewLogger(w io.Writer, c node.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Level}
	if c.JSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
