// Package redistest starts redis-server for the tests of all components that use Redis. It uses the program in
// QUORATE_REDIS_SERVER, or redis-server on the PATH. If there is no such program, the test is skipped. The servers
// listen on loopback and end with their test. The package owns the servers that it starts.
package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/testutil"
)

// Server is a redis-server of a test. Its methods end the test after an error.
type Server struct {
	T       testing.TB
	Address string
	Admin   *goredis.Client // a client that retries nothing

	program string
	args    []string
	process *exec.Cmd // nil while the server does not run
	log     testutil.Output
}

// Start starts a server with flags, and waits until it answers. The server does not write its data to the disk, unless
// the flags enable it.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	s := Launch(t, flags...)
	s.Wait()
	return s
}

// StartDurable is like Start, but the server loses no acknowledged write when it is killed.
func StartDurable(t testing.TB, flags ...string) *Server {
	t.Helper()
	return Start(t, append([]string{"--appendonly", "yes", "--appendfsync", "always"}, flags...)...)
}

// Launch starts a server. It does not wait until the server answers.
func Launch(t testing.TB, flags ...string) *Server {
	t.Helper()
	return launch(t, t.TempDir(), append([]string{"--save", "", "--enable-debug-command", "yes"}, flags...))
}

// StartWithFile starts a server with a configuration file and flags, and waits until it answers. It writes the given
// configuration to the file. The server may rewrite this file.
func StartWithFile(t testing.TB, configuration string, flags ...string) *Server {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "redis.conf")
	testutil.Must(t, os.WriteFile(file, []byte(configuration), 0o600))
	s := launch(t, folder, append([]string{file}, flags...))
	s.Wait()
	return s
}

func launch(t testing.TB, folder string, args []string) *Server {
	t.Helper()
	program := testutil.Program(t, "QUORATE_REDIS_SERVER", "redis-server")
	port := statetest.FreePort(t)
	s := &Server{T: t, Address: "127.0.0.1:" + port, program: program,
		args: append(args, "--port", port, "--bind", "127.0.0.1", "--dir", folder)}
	s.Admin = goredis.NewClient(&goredis.Options{Addr: s.Address, Protocol: 2, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() {
		_ = s.Admin.Close()
		s.Kill()
	})
	s.Run()
	return s
}

// Run starts the process of the server, which must not be running.
func (s *Server) Run() {
	s.T.Helper()
	s.process = exec.Command(s.program, s.args...)
	s.process.Stdout, s.process.Stderr = &s.log, &s.log
	testutil.Must(s.T, s.process.Start())
}

// Kill ends the process at once, even if the process is paused.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Signal(syscall.SIGCONT)
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	s.process = nil
}

// Stop ends the process in an orderly way.
func (s *Server) Stop() {
	s.T.Helper()
	s.Signal(syscall.SIGTERM)
	_ = s.process.Wait()
	s.process = nil
}

// Restart kills the server, starts it again, and waits until it answers.
func (s *Server) Restart() {
	s.T.Helper()
	s.Kill()
	s.Run()
	s.Wait()
}

// Signal sends a signal to the process. SIGSTOP pauses the server.
func (s *Server) Signal(signal syscall.Signal) {
	s.T.Helper()
	testutil.Must(s.T, s.process.Process.Signal(signal))
}

// Wait waits until the server answers. An answer that refuses the command, because the user is unknown or has no
// permission, is sufficient.
func (s *Server) Wait() {
	s.T.Helper()
	testutil.Eventually(s.T, func() error {
		err := s.Admin.Ping(s.T.Context()).Err()
		if err != nil && (strings.HasPrefix(err.Error(), "NOAUTH") || strings.HasPrefix(err.Error(), "NOPERM")) {
			return nil
		}
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, &s.log)
		}
		return err
	})
}

// Do sends a command, and returns the reply.
func (s *Server) Do(args ...any) any {
	s.T.Helper()
	out, err := s.Admin.Do(s.T.Context(), args...).Result()
	if err != nil {
		s.T.Fatalf("%v: %v", args, err)
	}
	return out
}

// Flag returns the value of a flag of the server, or "" if the server was started without it.
func (s *Server) Flag(name string) string {
	for i, arg := range s.args {
		if arg == name {
			return s.args[i+1]
		}
	}
	return ""
}

// LaunchMember starts a server that can join a Redis Cluster. The server does not belong to a cluster yet.
func LaunchMember(t testing.TB, flags ...string) *Server {
	t.Helper()
	return Launch(t, append([]string{"--cluster-enabled", "yes", "--cluster-config-file",
		filepath.Join(t.TempDir(), "nodes.conf"), "--cluster-port", statetest.FreePort(t), "--cluster-node-timeout",
		"2000"}, flags...)...)
}

// Meet adds the server s to the Redis Cluster of the server other.
func (s *Server) Meet(other *Server) {
	s.T.Helper()
	host, port, _ := net.SplitHostPort(other.Address)
	s.Do("cluster", "meet", host, port, other.Flag("--cluster-port"))
}

// StartCluster starts a Redis Cluster of three masters, each with a third of the slots.
func StartCluster(t testing.TB) []*Server {
	t.Helper()
	const masters, slots = 3, 16384
	var all []*Server
	for range masters {
		all = append(all, LaunchMember(t))
	}
	for i, s := range all {
		s.Wait()
		s.Do("cluster", "addslotsrange", i*slots/masters, (i+1)*slots/masters-1)
		if i > 0 {
			s.Meet(all[0])
		}
	}
	for _, s := range all {
		testutil.Eventually(t, func() error {
			info, err := s.Admin.ClusterInfo(t.Context()).Result()
			if err == nil && !(strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprint("cluster_known_nodes:", masters))) {
				err = fmt.Errorf("the cluster is not complete: %s", info)
			}
			return err
		})
	}
	return all
}

// Addresses returns the addresses of servers, separated by commas.
func Addresses(servers []*Server) string {
	var out []string
	for _, s := range servers {
		out = append(out, s.Address)
	}
	return strings.Join(out, ",")
}

// ReadCommand reads a command that a Redis client has sent. It is for tests that implement a fake server.
func ReadCommand(r *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := number()
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}
