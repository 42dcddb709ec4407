package ferretdb_test

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/testutil"
)

// startPostgreSQL starts a server until the end of the test, and returns its URL. It skips the test if PostgreSQL is
// not installed. PostgreSQL refuses to run as root. If the test runs as root, the user postgres or daemon runs
// PostgreSQL.
func startPostgreSQL(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("QUORATE_POSTGRES")
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin"); folder == "" && len(found) > 0 {
		folder = found[len(found)-1]
	}
	if folder == "" {
		t.Skip("PostgreSQL is not installed (Debian: postgresql), and QUORATE_POSTGRES is not set to the folder of " +
			"initdb")
	}
	home, err := os.MkdirTemp("", "quorate-postgres") // not t.TempDir, which only the user of the test may enter
	testutil.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	attributes := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		attributes.Credential = servant(t)
		testutil.Must(t, os.Chown(home, int(attributes.Credential.Uid), int(attributes.Credential.Gid)))
	}
	command := func(program string, args ...string) *exec.Cmd {
		c := exec.Command(filepath.Join(folder, program), append(args, "-D", filepath.Join(home, "data"))...)
		c.Dir, c.SysProcAttr = "/", attributes
		return c
	}
	out, err := command("initdb", "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale", "C.UTF-8",
		"--wal-segsize", "1").CombinedOutput()
	if err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	port := statetest.FreePort(t)
	server := command("postgres", "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "fsync=off")
	testutil.Must(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT) // ends it at once
		_ = server.Wait()
	})
	address := "postgres://postgres@127.0.0.1:" + port + "/postgres?sslmode=disable"
	testutil.Eventually(t, func() error {
		c, err := pgx.Connect(t.Context(), address)
		if err != nil {
			return err
		}
		return c.Close(t.Context())
	})
	return address
}

func servant(t *testing.T) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "daemon"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Skip("the test runs as root, PostgreSQL does not, and there is no user postgres or daemon")
	return nil
}
