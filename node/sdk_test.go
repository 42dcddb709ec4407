package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	sdk "github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// Two owners at two nodes try to acquire a lock with the public SDK. Only one of them gets the lock.
func TestSDK_Locks(t *testing.T) {
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) { c.App.ID = "shop" })
	ctx := t.Context()
	first, second := dialSDK(t, nodes[0]), dialSDK(t, nodes[1])
	lock := func(c sdk.Client, owner string) bool {
		t.Helper()
		got, err := c.TryLockAlpha1(ctx, "lockstore", &sdk.LockRequest{ResourceID: "file", LockOwner: owner,
			ExpiryInSeconds: 60})
		if err != nil {
			t.Fatal(err)
		}
		return got.Success
	}
	unlock := func(c sdk.Client, owner, want string) {
		t.Helper()
		got, err := c.UnlockAlpha1(ctx, "lockstore", &sdk.UnlockRequest{ResourceID: "file", LockOwner: owner})
		if err != nil || got.Status != want {
			t.Errorf("unlock by %s: %+v, %v, want %s", owner, got, err, want)
		}
	}
	if !lock(first, "a") || lock(second, "b") || lock(first, "a") {
		t.Error("the lock has not exactly one owner")
	}
	unlock(second, "b", "LOCK_BELONGS_TO_OTHERS")
	unlock(first, "a", "SUCCESS")
	unlock(first, "a", "LOCK_DOES_NOT_EXIST")
	if !lock(second, "b") {
		t.Error("a free lock was not granted")
	}
	_, err := first.TryLockAlpha1(ctx, "lockstore", &sdk.LockRequest{ResourceID: "file", LockOwner: "a"})
	wantStatus(t, err, codes.InvalidArgument)
	_, err = first.TryLockAlpha1(ctx, "absent", &sdk.LockRequest{ResourceID: "file", LockOwner: "a",
		ExpiryInSeconds: 1})
	wantStatus(t, err, codes.InvalidArgument)
}

// An application of the public SDK serves only the older name of the call about a job. It gets the jobs that a client
// of another node has scheduled.
func TestSDK_JobsReachGRPCApplication(t *testing.T) {
	events := make(chan string, 100)
	fails := 2
	port := grpcApp(t, func(s common.Service) error {
		return errors.Join(
			s.AddJobEventHandler("report", func(_ context.Context, in *common.JobEvent) error {
				events <- in.JobType + " " + string(in.Data)
				return nil
			}),
			s.AddJobEventHandler("flaky", func(_ context.Context, in *common.JobEvent) error {
				events <- in.JobType + " " + string(in.Data)
				if fails--; fails >= 0 {
					return errors.New("not yet")
				}
				return nil
			}))
	})
	c := member(t, "n1", 1)
	c.App.ID, c.App.Port, c.App.Protocol = "shop", port, node.ProtocolGRPC
	server := open(t, c)
	ready(t, server)
	s := nodetest.Sidecar(t, "s1", server.Addresses().Gossip)
	s.App.ID = "shop"
	side := open(t, s)
	ready(t, side)
	client, ctx := dialSDK(t, side), t.Context()
	schedule := func(j sdk.Job) {
		t.Helper()
		if err := client.ScheduleJobAlpha1(ctx, &j); err != nil {
			t.Fatal(err)
		}
	}
	want := func(text string) {
		t.Helper()
		select {
		case got := <-events:
			if got != text {
				t.Errorf("the application got %q, want %q", got, text)
			}
		case <-ctx.Done():
			t.Fatalf("the application did not get %q", text)
		}
	}
	schedule(sdk.Job{Name: "report", DueTime: "1ms", Data: &anypb.Any{Value: []byte(`{"order":1}`)}})
	want(`report {"order":1}`)
	schedule(sdk.Job{Name: "flaky", DueTime: "1ms", Data: &anypb.Any{Value: []byte("x")}})
	for range 3 { // the default failure policy: three more attempts
		want("flaky x")
	}

	schedule(sdk.Job{Name: "later", Schedule: "@every 1h", Repeats: 3, TTL: "48h",
		Data: &anypb.Any{TypeUrl: "example.org/order", Value: []byte{1, 2}}})
	got, err := client.GetJobAlpha1(ctx, "later")
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "later" || got.Schedule != "@every 1h" || got.Repeats != 3 || got.TTL != "48h" ||
		got.Data.GetTypeUrl() != "example.org/order" || string(got.Data.GetValue()) != "\x01\x02" {
		t.Errorf("%+v", got)
	}
	wantStatus(t, client.ScheduleJobAlpha1(ctx, &sdk.Job{Name: "later", Schedule: "@daily"}), codes.AlreadyExists)
	wantStatus(t, client.ScheduleJobAlpha1(ctx, &sdk.Job{Name: "wrong", Schedule: "* * * * *"}),
		codes.InvalidArgument)
	if err := client.DeleteJobAlpha1(ctx, "later"); err != nil {
		t.Error(err)
	}
	_, err = client.GetJobAlpha1(ctx, "later")
	wantStatus(t, err, codes.NotFound)
	poll(t, func() error { // jobs that have run are gone
		for _, name := range []string{"report", "flaky"} {
			if _, err := client.GetJobAlpha1(ctx, name); err == nil {
				return fmt.Errorf("the job %s is still there", name)
			}
		}
		return nil
	})
}

// A job for which the application has no handler fails, and is dropped after its attempts.
func TestSDK_JobWithoutHandlerIsDropped(t *testing.T) {
	t.Parallel()
	port := grpcApp(t, func(common.Service) error { return nil })
	log := &nodetest.Log{}
	c := config(t)
	c.App.Port, c.App.Protocol = port, node.ProtocolGRPC
	n := nodetest.OpenLogged(t, c, log)
	ready(t, n)
	client := dialSDK(t, n)
	if err := client.ScheduleJobAlpha1(t.Context(), &sdk.Job{Name: "unknown", DueTime: "1ms"}); err != nil {
		t.Fatal(err)
	}
	poll(t, func() error {
		if _, err := client.GetJobAlpha1(t.Context(), "unknown"); err == nil {
			return errors.New("the job is still there")
		}
		return nil
	})
	if text := log.String(); !strings.Contains(text, "job event handler not found") {
		t.Errorf("the log does not say why the job was dropped:\n%s", text)
	}
}
