package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dapr/go-sdk/actor"
	sdk "github.com/dapr/go-sdk/client"
	service "github.com/dapr/go-sdk/service/http"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// childActors is the environment variable with the address of an application with actors. The application runs in its
// own process, because the public SDK has only one actor runtime and one client in each process.
const childActors = "QUORATE_TEST_ACTORS"

// runActors serves an application with actors, which finds its node by DAPR_GRPC_PORT.
func runActors(address string) int {
	s := service.NewService(address)
	s.RegisterActorImplFactoryContext(func() actor.ServerContext { return &SDKCounter{} })
	if err := s.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// SDKCounter is an actor. The public SDK needs an exported type.
type SDKCounter struct{ actor.ServerImplBaseCtx }

// Type implements actor.ServerContext.
func (c *SDKCounter) Type() string { return "SDKCounter" }

// Add adds n, and returns the sum. The SDK saves the state after the method.
func (c *SDKCounter) Add(ctx context.Context, n int) (int, error) {
	state := c.GetStateManager()
	sum := 0
	if found, err := state.Contains(ctx, "sum"); err != nil {
		return 0, err
	} else if found {
		if err := state.Get(ctx, "sum", &sum); err != nil {
			return 0, err
		}
	}
	sum += n
	return sum, state.Set(ctx, "sum", sum)
}

// Remove removes the sum, and reports whether there was one.
func (c *SDKCounter) Remove(ctx context.Context) (bool, error) {
	found, err := c.GetStateManager().Contains(ctx, "sum")
	if err != nil {
		return false, err
	}
	return found, c.GetStateManager().Remove(ctx, "sum")
}

// Where returns the id of the process that hosts the actor.
func (c *SDKCounter) Where(context.Context) (int, error) { return os.Getpid(), nil }

// ReminderCall implements actor.ReminderCallee.
func (c *SDKCounter) ReminderCall(name string, data []byte, dueTime, period string) {
	ctx := context.Background()
	_ = c.GetStateManager().Set(ctx, "reminder", fmt.Sprint(name, " ", string(data), " ", dueTime, " ", period))
	_ = c.SaveState(ctx)
}

// Reminder returns the arguments of the last ReminderCall as text.
func (c *SDKCounter) Reminder(ctx context.Context) (text string, err error) {
	if found, err := c.GetStateManager().Contains(ctx, "reminder"); err != nil || !found {
		return "", err
	}
	err = c.GetStateManager().Get(ctx, "reminder", &text)
	return text, err
}

// Fail always returns an error.
func (c *SDKCounter) Fail(context.Context) (int, error) { return 0, errors.New("no") }

// counterClient has the methods of an actor that a client calls.
type counterClient struct {
	id       string
	Add      func(context.Context, int) (int, error)
	Remove   func(context.Context) (bool, error)
	Where    func(context.Context) (int, error)
	Reminder func(context.Context) (string, error)
	Fail     func(context.Context) (int, error)
}

func (c *counterClient) Type() string { return "SDKCounter" }
func (c *counterClient) ID() string   { return c.id }

// newCounterClient returns the client of an actor.
func newCounterClient(c sdk.Client, id string) *counterClient {
	s := &counterClient{id: id}
	c.ImplActorClientStub(s) // the SDK sets the functions of s, which then call the actor
	return s
}

// startActors starts the application with actors of a node, and returns its process.
func startActors(t *testing.T, appPort, grpcPort int) *os.Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=127.0.0.1:%d", childActors, appPort),
		fmt.Sprintf("DAPR_GRPC_PORT=%d", grpcPort), "DAPR_CLIENT_TIMEOUT_SECONDS=60")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process
}

// twoSDKActors starts a server and a sidecar, each with an instance of the application, and a client at each.
func twoSDKActors(t *testing.T) (nodes []*node.Node, apps []*os.Process, clients []sdk.Client) {
	t.Helper()
	start := func(c node.Config) {
		c.App.ID, c.App.Port = "bank", freePort(t)
		c.App.Health = node.AppHealth{Enabled: true, Interval: 200 * time.Millisecond,
			Timeout: 200 * time.Millisecond, Threshold: 3}
		c.API.GRPC = node.Port{Number: freePort(t), Given: true}
		apps = append(apps, startActors(t, c.App.Port, c.API.GRPC.Number))
		n := open(t, c)
		ready(t, n)
		nodes = append(nodes, n)
	}
	start(member(t, "n1", 1))
	start(nodetest.Sidecar(t, "s1", nodes[0].Addresses().Gossip))
	t.Setenv("DAPR_CLIENT_TIMEOUT_SECONDS", "60")
	for _, n := range nodes {
		poll(t, func() error { return hostsActors(t, n) })
		clients = append(clients, dialSDK(t, n))
	}
	return nodes, apps, clients
}

// hostsActors returns an error while the application of a node does not host its actors.
func hostsActors(t *testing.T, n *node.Node) error {
	t.Helper()
	_, text, _ := ask(t, n, http.MethodGet, "/v1.0/metadata", "")
	if !strings.Contains(text, `"type":"SDKCounter"`) {
		return fmt.Errorf("no actors are registered: %s", text)
	}
	return nil
}

func TestSDK_Actors(t *testing.T) {
	nodes, apps, clients := twoSDKActors(t)
	ctx := t.Context()
	var mu sync.Mutex // guards added
	var added tally   // what the calls have added to the sum
	add := func(i, n int) {
		sum, err := newCounterClient(clients[i%2], "a").Add(ctx, n)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			added.done += n
		case strings.Contains(err.Error(), "the host lost its lease"):
			added.unknown += n
		default:
			t.Errorf("call %d: %d, %v", i, sum, err)
		}
	}
	sums := func() {
		t.Helper()
		poll(t, func() error {
			sum, err := newCounterClient(clients[1], "a").Add(ctx, 0)
			if err == nil && !added.fits(fmt.Sprint(sum)) {
				t.Fatalf("after %+v the sum is %d", added, sum)
			}
			return err
		})
	}
	for i := range 12 { // from every node
		add(i, 2)
		sums()
	}
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() { add(i, 1) })
	}
	all.Wait()
	sums()
	if added.unknown > 0 {
		t.Skipf("a host lost its lease, so the actor may have moved: %+v", added)
	}
	if at, err := newCounterClient(clients[1], "a").Where(ctx); err != nil || at != apps[0].Pid {
		t.Errorf("the actor is in process %d, %v; it was first called at a node whose application is %d", at, err,
			apps[0].Pid)
	}
	if _, err := newCounterClient(clients[1], "a").Fail(ctx); err == nil || !strings.Contains(err.Error(), "Internal") {
		t.Errorf("a method that fails: %v", err)
	}
	if found, err := newCounterClient(clients[1], "a").Remove(ctx); err != nil || !found {
		t.Errorf("the sum was not removed: %v, %v", found, err)
	}
	if sum, err := newCounterClient(clients[0], "a").Add(ctx, 1); err != nil || sum != 1 {
		t.Errorf("after it was removed the sum is %d, %v", sum, err)
	}
	described, err := clients[0].GetMetadata(ctx)
	if err != nil || len(described.ActiveActorsCount) != 1 || described.ActiveActorsCount[0].Type != "SDKCounter" ||
		described.ActiveActorsCount[0].Count != 1 {
		t.Errorf("%+v, %v", described, err)
	}
	_, text, _ := ask(t, nodes[0], http.MethodGet, "/v1.0/metadata", "")
	if !strings.Contains(text, `"actors":[{"type":"SDKCounter","count":1}]`) {
		t.Errorf("the older list of actors is missing: %s", text)
	}
}

func TestSDK_RemindersAndTimers(t *testing.T) {
	_, _, clients := twoSDKActors(t)
	ctx := t.Context()
	remind := func(name, dueTime string) {
		t.Helper()
		if err := clients[1].RegisterActorReminder(ctx, &sdk.RegisterActorReminderRequest{ActorType: "SDKCounter",
			ActorID: "a", Name: name, DueTime: dueTime, Period: "1h", Data: []byte("hello")}); err != nil {
			t.Fatal(err)
		}
	}
	remind("soon", "10ms")
	remind("later", "1h")
	poll(t, func() error {
		text, err := newCounterClient(clients[0], "a").Reminder(ctx)
		if err == nil && text != "soon hello  " {
			err = fmt.Errorf("the actor was called with %q", text)
		}
		return err
	})
	for _, name := range []string{"soon", "later"} {
		if err := clients[0].UnregisterActorReminder(ctx, &sdk.UnregisterActorReminderRequest{
			ActorType: "SDKCounter", ActorID: "a", Name: name}); err != nil {
			t.Error(err)
		}
	}
	if _, err := newCounterClient(clients[1], "b").Add(ctx, 1); err != nil { // active at the second node
		t.Fatal(err)
	}
	if err := clients[1].RegisterActorTimer(ctx, &sdk.RegisterActorTimerRequest{ActorType: "SDKCounter", ActorID: "b",
		Name: "t", DueTime: "10ms", Period: "1h", CallBack: "Add", Data: []byte("5")}); err != nil {
		t.Fatal(err)
	}
	poll(t, func() error {
		sum, err := newCounterClient(clients[0], "b").Add(ctx, 0)
		if err == nil && sum != 6 {
			err = fmt.Errorf("the sum is %d, want 6", sum)
		}
		return err
	})
	if err := clients[1].UnregisterActorTimer(ctx, &sdk.UnregisterActorTimerRequest{ActorType: "SDKCounter",
		ActorID: "b", Name: "t"}); err != nil {
		t.Error(err)
	}
}

// The SDK keeps the state of an active actor in memory. If another instance has changed the state while an application
// was paused, the application must not continue with the state in its memory.
func TestSDK_ActorReturnsToPausedApplication(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until an application is unhealthy")
	}
	nodes, apps, clients := twoSDKActors(t)
	ctx := t.Context()
	if sum, err := newCounterClient(clients[0], "a").Add(ctx, 1); err != nil || sum != 1 {
		t.Fatal(sum, err)
	}
	if at, err := newCounterClient(clients[1], "a").Where(ctx); err != nil || at != apps[0].Pid {
		t.Fatalf("the actor is in process %d, %v, want %d", at, err, apps[0].Pid)
	}
	if err := apps[0].Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	poll(t, func() error {
		once, cancel := context.WithTimeout(ctx, time.Second) // a call hangs if the paused application has received it
		defer cancel()
		at, err := newCounterClient(clients[1], "a").Where(once)
		if err == nil && at != apps[1].Pid {
			err = errors.New("the actor is still in the paused application")
		}
		return err
	})
	if sum, err := newCounterClient(clients[1], "a").Add(ctx, 10); err != nil || sum != 11 {
		t.Fatalf("after the move the sum is %d, %v, want 11", sum, err)
	}
	if err := apps[0].Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	closeNode(t, nodes[1])
	poll(t, func() error {
		at, err := newCounterClient(clients[0], "a").Where(ctx)
		if err == nil && at != apps[0].Pid {
			err = errors.New("the actor is not in the application that was paused")
		}
		return err
	})
	if sum, err := newCounterClient(clients[0], "a").Add(ctx, 1); err != nil || sum != 12 {
		t.Errorf("back in the first application the sum is %d, %v, want 12", sum, err)
	}
}
