// Package postgrestest starts PostgreSQL servers for tests. It searches for the programs of PostgreSQL in the folder
// QUORATE_POSTGRES, on the PATH and in Debian's package. If they are missing, it skips the test. The servers listen on
// loopback, accept each client without a password, and end with their test. The package owns the servers that it
// starts.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/testutil"
)

// folder returns the folder with the programs of PostgreSQL. It is QUORATE_POSTGRES if this variable is set.
// Otherwise it is the folder of initdb on the PATH or in Debian's package. If PostgreSQL is not installed, the test
// is skipped.
func folder(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("QUORATE_POSTGRES"); path != "" {
		return path
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	t.Skip("PostgreSQL is not installed (Debian: postgresql), and QUORATE_POSTGRES is not set to the folder of initdb")
	return ""
}

// Server is a PostgreSQL server of a test. Its methods end the test after an error.
type Server struct {
	T    testing.TB
	Port string
	Data string // the folder of the database

	process *exec.Cmd // nil while the server does not run
	log     testutil.Output
}

// command returns a command that runs a program of PostgreSQL. The command never runs as root (see Owner).
func command(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(filepath.Join(folder(t), program), args...)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{}
	if uid, gid, ok := Owner(t); ok {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	return c
}

// Owner returns the user id and the group id under which PostgreSQL must run. PostgreSQL refuses to run as root, so if
// the test runs as root, these are the ids of another user, and differs is true. Otherwise PostgreSQL runs as the user
// of the test, and Owner returns 0, 0 and false.
func Owner(t testing.TB) (uid, gid uint32, differs bool) {
	t.Helper()
	if os.Getuid() != 0 {
		return 0, 0, false
	}
	for _, name := range []string{"postgres", "daemon"} {
		if u, err := user.Lookup(name); err == nil {
			n, _ := strconv.ParseUint(u.Uid, 10, 32)
			m, _ := strconv.ParseUint(u.Gid, 10, 32)
			return uint32(n), uint32(m), true
		}
	}
	t.Skip("the test runs as root, PostgreSQL does not, and there is no user postgres or daemon")
	return 0, 0, false
}

// Servers starts the servers of a test package. Its zero value is ready. It is safe for concurrent use.
type Servers struct {
	once sync.Once
	home string // folder of an empty database that each server copies, because initdb takes seconds
}

// Start starts a server. The settings are lines of postgresql.conf. Unless they enable fsync, the server does not sync
// its files to the disk. Even so, a killed server loses no data, because the machine keeps running.
func (all *Servers) Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	folder(t) // skips the test if PostgreSQL is not installed
	all.once.Do(func() {
		all.home = NewHome(t)
		out, err := command(t, "initdb", "-D", filepath.Join(all.home, "data"), "-U", "postgres", "-A", "trust", "-N",
			"-E", "UTF8", "--locale", "C.UTF-8", "--wal-segsize", "1").CombinedOutput()
		if err != nil {
			t.Fatalf("initdb: %v\n%s", err, out)
		}
	})
	s := copied(t, filepath.Join(all.home, "data"))
	s.Configure(append([]string{"listen_addresses = '127.0.0.1'", "unix_socket_directories = ''", "fsync = off"},
		settings...)...)
	s.Run()
	s.Wait()
	return s
}

// Close removes the empty database of which each server gets a copy. A package calls Close after its tests.
func (all *Servers) Close() {
	if all.home != "" {
		_ = os.RemoveAll(all.home)
	}
}

// Copy returns a new server with a copy of the data of s. The new server is not started. s must not be running during
// the copy.
func (s *Server) Copy(t testing.TB) *Server {
	t.Helper()
	return copied(t, s.Data)
}

func copied(t testing.TB, data string) *Server {
	t.Helper()
	home := NewHome(t)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	s := &Server{T: t, Port: statetest.FreePort(t), Data: filepath.Join(home, "data")}
	t.Cleanup(s.Kill)
	if out, err := exec.Command("cp", "-a", data, s.Data).CombinedOutput(); err != nil {
		t.Fatalf("copying a database: %v\n%s", err, out)
	}
	s.Configure("port = " + s.Port)
	return s
}

// Configure appends settings to postgresql.conf, which PostgreSQL reads when it starts.
func (s *Server) Configure(settings ...string) {
	s.T.Helper()
	file, err := os.OpenFile(filepath.Join(s.Data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	testutil.Must(s.T, err)
	_, err = file.WriteString(strings.Join(settings, "\n") + "\n")
	testutil.Must(s.T, err)
	testutil.Must(s.T, file.Close())
}

// Log returns what the server has printed.
func (s *Server) Log() string { return s.log.String() }

// NewHome returns a new folder that belongs to the user under which PostgreSQL runs. This folder is outside the
// temporary folder of the test, which only the user of the test may enter.
func NewHome(t testing.TB) string {
	t.Helper()
	home, err := os.MkdirTemp("", "quorate-postgres")
	testutil.Must(t, err)
	if uid, gid, other := Owner(t); other {
		testutil.Must(t, os.Chown(home, int(uid), int(gid)))
	}
	return home
}

// Run starts the process.
func (s *Server) Run() {
	s.T.Helper()
	s.process = command(s.T, "postgres", "-D", s.Data)
	s.process.Stdout, s.process.Stderr = &s.log, &s.log
	testutil.Must(s.T, s.process.Start())
}

// ShutDown ends all connections of the server, and then ends the server in an orderly way.
func (s *Server) ShutDown() {
	s.T.Helper()
	testutil.Must(s.T, s.process.Process.Signal(syscall.SIGINT))
	_ = s.process.Wait()
	s.process = nil
}

// Kill ends all processes of the server at once.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	for _, pid := range s.children() {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	s.process = nil
}

// children returns the processes whose parent is the server.
func (s *Server) children() (out []int) {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[1] == strconv.Itoa(s.process.Process.Pid) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			out = append(out, pid)
		}
	}
	return out
}

// Pause suspends all processes of the server if stop is true, and otherwise resumes them. It suspends the parent
// process before the children, so that no new child can start.
func (s *Server) Pause(stop bool) {
	s.T.Helper()
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	testutil.Must(s.T, s.process.Process.Signal(signal))
	for _, pid := range s.children() {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.T.Fatal(err)
		}
	}
}

// URL returns the connection string.
func (s *Server) URL() string {
	return "postgres://postgres@127.0.0.1:" + s.Port + "/postgres?sslmode=disable"
}

// Wait waits until the server answers.
func (s *Server) Wait() {
	s.T.Helper()
	testutil.Eventually(s.T, func() error {
		c, err := pgx.Connect(s.T.Context(), s.URL())
		if err != nil {
			return fmt.Errorf("%w\n%s", err, &s.log)
		}
		return c.Close(s.T.Context())
	})
}

// Do runs a statement, and returns the first column of the first row as text.
func (s *Server) Do(sql string, args ...any) string {
	s.T.Helper()
	out, err := s.Try(context.WithoutCancel(s.T.Context()), sql, args...)
	if err != nil {
		s.T.Fatalf("%s: %v", sql, err)
	}
	return out
}

// Try is like Do, but returns an error instead of ending the test.
func (s *Server) Try(ctx context.Context, sql string, args ...any) (string, error) {
	c, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	rows, err := c.Query(ctx, sql, args...)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var out string
	if rows.Next() && len(rows.FieldDescriptions()) > 0 {
		values, err := rows.Values()
		if err != nil {
			return "", err
		}
		out = fmt.Sprint(values[0])
	}
	rows.Close()
	return out, rows.Err()
}
