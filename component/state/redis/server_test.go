package redis_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/testutil"
)

// patience ends a test that hangs. It asserts nothing.
const patience = 2 * time.Minute

// program returns the path of redis-server: QUORATE_REDIS_SERVER, or the one on the PATH.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("QUORATE_REDIS_SERVER"); path != "" {
		return path
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed (Debian: redis-server), and QUORATE_REDIS_SERVER is not set")
	}
	return path
}

// server is a redis-server of this test.
type server struct {
	t       *testing.T
	path    string
	address string
	args    []string
	process *exec.Cmd
	admin   *goredis.Client
}

// start starts a server with settings of redis.conf, and waits until it answers.
func start(t *testing.T, settings ...string) *server {
	t.Helper()
	s := launch(t, settings...)
	s.wait()
	return s
}

// launch starts a server without waiting for it.
func launch(t *testing.T, settings ...string) *server {
	t.Helper()
	port := statetest.FreePort(t)
	s := &server{t: t, path: program(t), address: "127.0.0.1:" + port}
	s.args = append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir(),
		"--enable-debug-command", "yes"}, settings...)
	s.run()
	s.admin = goredis.NewClient(&goredis.Options{Addr: s.address, Protocol: 2, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() {
		_ = s.admin.Close()
		s.kill()
	})
	return s
}

// run starts the process.
func (s *server) run() {
	s.t.Helper()
	s.process = exec.Command(s.path, s.args...)
	var out bytes.Buffer
	s.process.Stdout, s.process.Stderr = &out, &out
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) kill() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Signal(syscall.SIGCONT)
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	s.process = nil
}

// signal sends a signal to the server: SIGSTOP pauses it.
func (s *server) signal(signal syscall.Signal) {
	s.t.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}

// wait waits until the server answers.
func (s *server) wait() {
	s.t.Helper()
	testutil.Eventually(s.t, func() error {
		err := s.admin.Ping(s.t.Context()).Err()
		if err != nil && (strings.HasPrefix(err.Error(), "NOAUTH") || strings.HasPrefix(err.Error(), "NOPERM")) {
			return nil
		}
		return err
	})
}

// do sends a command.
func (s *server) do(args ...any) any {
	s.t.Helper()
	out, err := s.admin.Do(s.t.Context(), args...).Result()
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return out
}

// startCluster starts a Redis Cluster of three masters.
func startCluster(t *testing.T) []*server {
	t.Helper()
	var all []*server
	for range 3 {
		all = append(all, launch(t, "--cluster-enabled", "yes", "--cluster-config-file",
			filepath.Join(t.TempDir(), "nodes.conf"), "--cluster-port", statetest.FreePort(t),
			"--cluster-node-timeout", "2000"))
	}
	const slots = 16384
	for i, s := range all {
		s.wait()
		for slot := i * slots / 3; slot < (i+1)*slots/3; {
			args := []any{"cluster", "addslots"}
			for ; slot < (i+1)*slots/3 && len(args) < 1000; slot++ {
				args = append(args, slot)
			}
			s.do(args...)
		}
		if i > 0 {
			host, port, _ := net.SplitHostPort(all[0].address)
			s.do("cluster", "meet", host, port, all[0].setting("--cluster-port"))
		}
	}
	for _, s := range all {
		testutil.Eventually(t, func() error {
			info, err := s.admin.ClusterInfo(t.Context()).Result()
			complete := strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
			if err == nil && !complete {
				err = fmt.Errorf("%s", info)
			}
			return err
		})
	}
	return all
}

// setting returns the value of an argument of the server.
func (s *server) setting(name string) string {
	for i, arg := range s.args {
		if arg == name {
			return s.args[i+1]
		}
	}
	return ""
}

func addresses(servers []*server) string {
	var out []string
	for _, s := range servers {
		out = append(out, s.address)
	}
	return strings.Join(out, ",")
}

// age makes all keys of a server older: what expires in less than d is gone.
func (s *server) age(ctx context.Context, d time.Duration) error {
	const script = `
for _, key in ipairs(redis.call("KEYS", "*")) do
  local left = redis.call("PTTL", key)
  if left > 0 then redis.call("PEXPIRE", key, left - ARGV[1]) end
end`
	err := s.admin.Eval(ctx, script, nil, d.Milliseconds()).Err()
	if err == goredis.Nil {
		return nil
	}
	return err
}

// startWithFile starts a server with these flags and a configuration file, which the server may rewrite.
func startWithFile(t *testing.T, configuration string, flags ...string) *server {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "redis.conf")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	port := statetest.FreePort(t)
	s := &server{t: t, path: program(t), address: "127.0.0.1:" + port,
		args: append([]string{file, "--port", port, "--bind", "127.0.0.1", "--dir", folder}, flags...)}
	s.run()
	s.admin = goredis.NewClient(&goredis.Options{Addr: s.address, Protocol: 2, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() {
		_ = s.admin.Close()
		s.kill()
	})
	s.wait()
	return s
}
