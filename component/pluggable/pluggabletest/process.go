// Package pluggabletest imitates a process with pluggable components, for tests. It runs a gRPC server with reflection
// on a Unix socket. A test can stop this "process" and start it again.
//
// The package owns a server for each kind of component. The test provides the objects that hold the data. As in Dapr's
// SDK for Go, the gRPC metadata x-component-instance selects a component, and calls before Init are refused. All
// goroutines end with the test.
package pluggabletest

import (
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
)

// Folder returns a new directory for sockets, which is removed when the test ends. Its path is short, because operating
// systems limit the length of a socket's path.
func Folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Reflection is the version of the reflection service.
type Reflection uint8

// The versions. Older SDKs have only V1Alpha.
const (
	V1Alpha Reflection = iota
	V1
	NoReflection
)

// Service registers one kind of component with the gRPC server s. The component must call i.Init when it is
// initialised, and i.Check in all other calls.
type Service func(s *grpc.Server, i *Instances)

// Process is a process with components.
type Process struct {
	Path       string // path of the socket
	Reflection Reflection
	Services   []Service
	Instances  *Instances // components of all incarnations of the process

	t      testing.TB
	mu     sync.Mutex
	server *grpc.Server
	served sync.WaitGroup
}

// New returns a process that is not started. The path of its socket is folder/name.sock.
func New(t testing.TB, folder, name string, services ...Service) *Process {
	p := &Process{Path: filepath.Join(folder, name+".sock"), Services: services, Instances: &Instances{}, t: t}
	t.Cleanup(p.Kill)
	return p
}

// Start returns a process that is started.
func Start(t testing.TB, folder, name string, services ...Service) *Process {
	t.Helper()
	p := New(t, folder, name, services...)
	p.Run()
	return p
}

// Run starts the process. The socket of an earlier run is replaced.
func (p *Process) Run() {
	p.t.Helper()
	_ = os.Remove(p.Path)
	l, err := net.Listen("unix", p.Path)
	if err != nil {
		p.t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the socket stays, as after kill -9
	p.Instances.forget()
	s := grpc.NewServer()
	for _, register := range p.Services {
		register(s, p.Instances)
	}
	listed := reflection.NewServerV1(reflection.ServerOptions{Services: s})
	switch p.Reflection {
	case V1Alpha:
		reflectionv1alpha.RegisterServerReflectionServer(s, //nolint:staticcheck // older SDKs have only this version
			reflection.NewServer(reflection.ServerOptions{Services: s}))
	case V1:
		reflectionv1.RegisterServerReflectionServer(s, listed)
	case NoReflection:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = s
	p.served.Go(func() { _ = s.Serve(l) }) // Serve fails when the process is killed
}

// Kill ends the process at once. Its socket stays, without a listener.
func (p *Process) Kill() { p.stop((*grpc.Server).Stop) }

// Leave waits for the calls in progress, and then ends the process.
func (p *Process) Leave() { p.stop((*grpc.Server).GracefulStop) }

func (p *Process) stop(how func(*grpc.Server)) {
	p.mu.Lock()
	s := p.server
	p.server = nil
	p.mu.Unlock()
	if s != nil {
		how(s)
	}
	p.served.Wait()
}

// Instances are the components of a process that have been initialised.
type Instances struct {
	mu     sync.Mutex
	ready  map[string]bool // components initialised since the start of the process
	inits  int
	last   map[string]string // properties of the last call of Init
	refuse error
}

// Init records that the component named in ctx was initialised with the given properties. If a test has set an error
// with Refuse, Init returns this error.
func (i *Instances) Init(ctx context.Context, properties map[string]string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.inits++
	i.last = maps.Clone(properties)
	if i.refuse != nil {
		return i.refuse
	}
	i.ready[instance(ctx)] = true
	return nil
}

// Check returns an error if the component named in ctx was not initialised since the start of the process. A service
// calls Check in every call except Init.
func (i *Instances) Check(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ready[instance(ctx)] {
		return status.Error(codes.FailedPrecondition, "Init was not called for this component")
	}
	return nil
}

// Refuse makes Init fail, or succeed if err is nil.
func (i *Instances) Refuse(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refuse = err
}

// Inits returns how often Init was called, and the last properties.
func (i *Instances) Inits() (int, map[string]string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.inits, maps.Clone(i.last)
}

// Names returns the names of the components that are initialised.
func (i *Instances) Names() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Sorted(maps.Keys(i.ready))
}

func (i *Instances) forget() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ready = map[string]bool{}
}

func instance(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if names := md.Get("x-component-instance"); len(names) > 0 {
		return names[0]
	}
	return ""
}
