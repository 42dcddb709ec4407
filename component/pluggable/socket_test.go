package pluggable_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component/pluggable"
	"github.com/quorate/quorate/component/pluggable/pluggabletest"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// once returns a context without a deadline, with which an Open function tries only once.
func once(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }

func write(t testing.TB, path string) {
	t.Helper()
	testutil.Must(t, os.WriteFile(path, nil, 0o600))
}

func TestOpen_SocketThatCannotBeUsed(t *testing.T) {
	listen := func(path string) {
		t.Helper()
		l, err := net.Listen("unix", path)
		testutil.Must(t, err)
		t.Cleanup(func() { _ = l.Close() })
	}
	for name, c := range map[string]struct {
		prepare func(dir string)
		code    fault.Code
		text    string
	}{
		"none": {func(dir string) { write(t, filepath.Join(dir, "other.sock")) }, fault.Unavailable,
			"there is no socket redis-like.sock in "},
		"a file": {func(dir string) { write(t, filepath.Join(dir, "redis-like.sock")) }, fault.Unavailable,
			"is not a socket"},
		"a directory": {func(dir string) { testutil.Must(t, os.Mkdir(filepath.Join(dir, "redis-like"), 0o700)) },
			fault.Unavailable, "is not a socket"},
		"a link": {func(dir string) {
			listen(filepath.Join(dir, "other.sock"))
			testutil.Must(t, os.Symlink("other.sock", filepath.Join(dir, "redis-like.sock")))
		}, fault.Unavailable, "links are not followed"},
		"two": {func(dir string) {
			listen(filepath.Join(dir, "redis-like.sock"))
			listen(filepath.Join(dir, "Redis-Like.socket"))
		}, fault.Invalid, "have the same name"},
		"no listener": {func(dir string) {
			l, err := net.Listen("unix", filepath.Join(dir, "redis-like.sock"))
			testutil.Must(t, err)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			testutil.Must(t, l.Close())
		}, fault.Unavailable, "no component listens at "},
		"no folder": {func(dir string) { testutil.Must(t, os.Remove(dir)) }, fault.Unavailable,
			"--components-sockets-folder"},
		"a pipe as folder": {func(dir string) {
			testutil.Must(t, os.Remove(dir))
			testutil.Must(t, syscall.Mkfifo(dir, 0o600))
		}, fault.Unavailable, "--components-sockets-folder"},
		"many files": {func(dir string) {
			for i := range 501 {
				write(t, filepath.Join(dir, fmt.Sprint(i)))
			}
		}, fault.TooLarge, "more than 500 files"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(pluggabletest.Folder(t), "s")
			testutil.Must(t, os.Mkdir(folder, 0o700))
			c.prepare(folder)
			_, err := pluggable.OpenState(once(t), options(t, folder, "state.redis-like"))
			statetest.WantFault(t, err, c.code, c.text, folder)
		})
	}
}

func TestOpen_LongPath(t *testing.T) {
	folder := pluggabletest.Folder(t)
	name := strings.Repeat("n", 104-len(folder+"/"+".sock"))
	pluggabletest.Start(t, folder, name) // a path that Linux allows, and macOS does not
	_, err := pluggable.OpenState(once(t), options(t, folder, "state."+name))
	statetest.WantFault(t, err, fault.Invalid, "the limit is 103")
}

func TestOpen_SuggestsBuiltInType(t *testing.T) {
	o := options(t, pluggabletest.Folder(t), "state.rediss")
	o.BuiltIn = []string{"state.raft", "state.redis"}
	_, err := pluggable.OpenState(once(t), o)
	statetest.WantFault(t, err, fault.Unavailable, "did you mean state.redis?", "there is no socket rediss.sock")
}

// TestOpen_WaitsForLateSocket opens a component whose process starts later.
func TestOpen_WaitsForLateSocket(t *testing.T) {
	folder := pluggabletest.Folder(t)
	opened := make(chan error)
	ctx := soon(t)
	go func() {
		s, err := pluggable.OpenState(ctx, options(t, folder, "state.late"))
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("opened without a socket: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	server := &pluggabletest.State{Store: memory(t, inmemory.Options{})}
	pluggabletest.Start(t, folder, "late", server.Register)
	testutil.Must(t, <-opened)
}

// brokenReflection is a reflection service that fails.
type brokenReflection struct {
	reflection.UnimplementedServerReflectionServer
}

func (r brokenReflection) register(s *grpc.Server, _ *pluggabletest.Instances) {
	reflection.RegisterServerReflectionServer(s, r)
}

func (brokenReflection) ServerReflectionInfo(s reflection.ServerReflection_ServerReflectionInfoServer) error {
	return status.Error(codes.Internal, "why")
}

func TestOpen_Services(t *testing.T) {
	server := &pluggabletest.State{Store: memory(t, inmemory.Options{})}
	many := func(s *grpc.Server, _ *pluggabletest.Instances) {
		for i := range 1001 {
			s.RegisterService(&grpc.ServiceDesc{ServiceName: fmt.Sprint("some.Service", i)}, nil)
		}
	}
	for name, c := range map[string]struct {
		reflection pluggabletest.Reflection
		service    pluggabletest.Service
		code       fault.Code
		text       string
	}{
		"older reflection": {pluggabletest.V1Alpha, server.Register, "", ""},
		"newer reflection": {pluggabletest.V1, server.Register, "", ""},
		"no reflection": {pluggabletest.NoReflection, server.Register, fault.Invalid,
			"no gRPC reflection"},
		"failing reflection": {pluggabletest.NoReflection, brokenReflection{}.register, fault.Unavailable,
			"answered with an error: Internal: why"},
		"another building block": {pluggabletest.V1Alpha, (&pluggabletest.Secrets{}).Register, fault.Invalid,
			"has no service dapr.proto.components.v1.StateStore; it has: dapr.proto.components.v1.SecretStore"},
		"many services": {pluggabletest.V1Alpha, many, fault.TooLarge, "more than 1000 services"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := pluggabletest.Folder(t)
			p := pluggabletest.New(t, folder, "x", c.service)
			p.Reflection = c.reflection
			p.Run()
			s, err := pluggable.OpenState(once(t), options(t, folder, "state.x"))
			if c.code != "" {
				statetest.WantFault(t, err, c.code, c.text)
				return
			}
			testutil.Must(t, err)
			testutil.Must(t, s.Close())
		})
	}
}

// TestOpen_OtherServer connects to servers that do not speak gRPC.
func TestOpen_OtherServer(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"says nothing": func(c net.Conn) { _, _ = c.Read(make([]byte, 1<<20)) },
		"closes":       func(c net.Conn) { _ = c.Close() },
		"speaks HTTP/1": func(c net.Conn) {
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := pluggabletest.Folder(t)
			l, err := net.Listen("unix", filepath.Join(folder, "x.sock"))
			testutil.Must(t, err)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					serve(c)
					t.Cleanup(func() { _ = c.Close() })
				}
			}()
			t.Cleanup(func() {
				_ = l.Close()
				<-ended
			})
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, err := pluggable.OpenState(ctx, options(t, folder, "state.x")); !fault.Is(err, fault.Unavailable) &&
				!fault.Is(err, fault.Timeout) {
				t.Errorf("%v with code %q", err, fault.CodeOf(err))
			}
		})
	}
}
