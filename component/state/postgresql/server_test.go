package postgresql_test

import (
	"context"
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
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/testutil"
)

// patience ends a test that hangs. It asserts nothing.
const patience = 2 * time.Minute

// folder returns the folder with the programs of PostgreSQL: QUORATE_POSTGRES, or that of Debian's package.
func folder(t *testing.T) string {
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

// server is a PostgreSQL server of this test.
type server struct {
	t       *testing.T
	port    string
	data    string
	process *exec.Cmd
	log     testutil.Output
}

// command makes a command for a program of PostgreSQL, which does not run as root.
func command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(filepath.Join(folder(t), program), args...)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{}
	if uid, gid, ok := owner(t); ok {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	return c
}

// owner returns the user who runs PostgreSQL. other is true if that is not the user of the test.
func owner(t *testing.T) (uid, gid uint32, other bool) {
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

// start starts a server with settings of postgresql.conf. It does not sync its files, because the tests end processes
// and not the machine.
func start(t *testing.T, settings ...string) *server {
	t.Helper()
	home := newHome(t)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	s := &server{t: t, port: statetest.FreePort(t), data: filepath.Join(home, "data")}
	if out, err := exec.Command("cp", "-a", template(t), s.data).CombinedOutput(); err != nil {
		t.Fatalf("copying a new database: %v\n%s", err, out)
	}
	text := "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nport = " + s.port + "\nfsync = off\n" +
		strings.Join(settings, "\n") + "\n"
	file, err := os.OpenFile(filepath.Join(s.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	s.run()
	t.Cleanup(s.kill)
	s.wait()
	return s
}

// newHome returns a new folder of the user who runs PostgreSQL. It is not in the temporary folder of the test, which
// only the user of the test may enter.
func newHome(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("", "quorate-postgres")
	if err != nil {
		t.Fatal(err)
	}
	if uid, gid, other := owner(t); other {
		if err := os.Chown(home, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

// templates has the folder of a new database, which initdb takes seconds to make.
var templates struct {
	once sync.Once
	home string
}

func template(t *testing.T) string {
	t.Helper()
	folder(t) // skips the test
	templates.once.Do(func() {
		templates.home = newHome(t)
		out, err := command(t, "initdb", "-D", filepath.Join(templates.home, "data"), "-U", "postgres", "-A", "trust",
			"-N", "-E", "UTF8", "--locale", "C.UTF-8", "--wal-segsize", "1").CombinedOutput()
		if err != nil {
			t.Fatalf("initdb: %v\n%s", err, out)
		}
	})
	return filepath.Join(templates.home, "data")
}

func removeTemplate() {
	if templates.home != "" {
		_ = os.RemoveAll(templates.home)
	}
}

// run starts the process.
func (s *server) run() {
	s.t.Helper()
	s.process = command(s.t, "postgres", "-D", s.data)
	s.process.Stdout, s.process.Stderr = &s.log, &s.log
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// kill ends all processes of the server at once.
func (s *server) kill() {
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
func (s *server) children() (out []int) {
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

// pause stops all processes of the server, or lets them go on.
func (s *server) pause(stop bool) {
	s.t.Helper()
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	for _, pid := range append(s.children(), s.process.Process.Pid) {
		if err := syscall.Kill(pid, signal); err != nil {
			s.t.Fatal(err)
		}
	}
}

// url returns the connection string.
func (s *server) url() string {
	return "postgres://postgres@127.0.0.1:" + s.port + "/postgres?sslmode=disable"
}

func (s *server) wait() {
	s.t.Helper()
	testutil.Eventually(s.t, func() error {
		c, err := pgx.Connect(s.t.Context(), s.url())
		if err != nil {
			return fmt.Errorf("%w\n%s", err, &s.log)
		}
		return c.Close(s.t.Context())
	})
}

// do runs a statement, and returns the first column of the first row as text.
func (s *server) do(sql string, args ...any) string {
	s.t.Helper()
	out, err := s.try(context.WithoutCancel(s.t.Context()), sql, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func (s *server) try(ctx context.Context, sql string, args ...any) (string, error) {
	c, err := pgx.Connect(ctx, s.url())
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
