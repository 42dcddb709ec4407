package grpc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/runtimepb"
)

type watchClient struct {
	t *testing.T
	grpc.ServerStreamingClient[runtimepb.WatchEvent]
}

func watch(t *testing.T, conn grpc.ClientConnInterface, r *runtimepb.WatchRequest) watchClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	r.StoreName = "orders"
	stream, err := runtimepb.NewStateClient(conn).Watch(ctx, r)
	must(t, err)
	return watchClient{t, stream}
}

// want receives one event and compares it, except for fields that want leaves empty.
func (w watchClient) want(want *runtimepb.WatchEvent) *runtimepb.WatchEvent {
	w.t.Helper()
	got, err := w.Recv()
	must(w.t, err)
	all := proto.Clone(got)
	proto.Merge(all, want)
	if !proto.Equal(all, got) {
		w.t.Fatalf("got %v, want %v", got, want)
	}
	return got
}

func save(t *testing.T, d runtimev1.DaprClient, key, value string, pairs ...string) {
	t.Helper()
	item := &commonv1.StateItem{Key: key, Value: []byte(value), Metadata: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		item.Metadata[pairs[i]] = pairs[i+1]
	}
	_, err := d.SaveState(t.Context(), &runtimev1.SaveStateRequest{StoreName: "orders",
		States: []*commonv1.StateItem{item}})
	must(t, err)
}

func TestWatch_SameFieldsAsHTTP(t *testing.T) {
	conn := newFixture(t).serve(t)
	d := runtimev1.NewDaprClient(conn)
	save(t, d, "old", `1`)
	w := watch(t, conn, &runtimepb.WatchRequest{Prefix: "a"})
	start := w.want(&runtimepb.WatchEvent{Type: "bookmark"})
	save(t, d, "b", `1`)
	save(t, d, "a", `{"x":1}`, "ttlInSeconds", "1000")
	put := w.want(&runtimepb.WatchEvent{Type: "put", Key: "a", Value: []byte(`{"x":1}`)})
	if put.GetTtlExpireTime() == "" || put.GetRevision() == "" || put.GetPosition() == "" ||
		put.GetContentType() != "" {
		t.Errorf("%v", put)
	}
	save(t, d, "a", "\x00\x01")
	w.want(&runtimepb.WatchEvent{Type: "put", Key: "a", Value: []byte("\x00\x01"),
		ContentType: "application/octet-stream"})
	_, err := d.DeleteState(t.Context(), &runtimev1.DeleteStateRequest{StoreName: "orders", Key: "a"})
	must(t, err)
	w.want(&runtimepb.WatchEvent{Type: "delete", Key: "a", Reason: "deleted"})

	again := watch(t, conn, &runtimepb.WatchRequest{Keys: []string{"a", "b"}, From: start.GetPosition(),
		OmitValues: true})
	again.want(&runtimepb.WatchEvent{Type: "bookmark"})
	again.want(&runtimepb.WatchEvent{Type: "put", Key: "b"})
	if e := again.want(&runtimepb.WatchEvent{Type: "put", Key: "a"}); len(e.GetValue()) > 0 {
		t.Errorf("the values were not omitted: %v", e)
	}

	all := watch(t, conn, &runtimepb.WatchRequest{Snapshot: true})
	all.want(&runtimepb.WatchEvent{Type: "item", Key: "b", Value: []byte(`1`)})
	all.want(&runtimepb.WatchEvent{Type: "item", Key: "old"})
	all.want(&runtimepb.WatchEvent{Type: "synced"})
}

func TestWatch_Refusals(t *testing.T) {
	conn := newFixture(t).serve(t)
	for name, c := range map[string]struct {
		request *runtimepb.WatchRequest
		want    codes.Code
	}{
		"both": {&runtimepb.WatchRequest{StoreName: "orders", Prefix: "a", Keys: []string{"b"}},
			codes.InvalidArgument},
		"bookmark": {&runtimepb.WatchRequest{StoreName: "orders", Bookmark: "soon"}, codes.InvalidArgument},
		"position": {&runtimepb.WatchRequest{StoreName: "orders", From: "x"}, codes.InvalidArgument},
		"store":    {&runtimepb.WatchRequest{StoreName: "none"}, codes.InvalidArgument},
	} {
		stream, err := runtimepb.NewStateClient(conn).Watch(t.Context(), c.request)
		must(t, err)
		if _, err := stream.Recv(); status.Code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfiguration_SetAndDelete(t *testing.T) {
	conn := newFixture(t).serve(t)
	c, d := runtimepb.NewConfigurationClient(conn), runtimev1.NewDaprClient(conn)
	ctx := t.Context()
	set := func(item *runtimepb.ConfigurationItem) error {
		_, err := c.Set(ctx, &runtimepb.SetConfigurationRequest{StoreName: "items",
			Items: []*runtimepb.ConfigurationItem{item}})
		return err
	}
	must(t, set(&runtimepb.ConfigurationItem{Key: "a", Value: "1", Version: "0",
		Metadata: map[string]string{"unit": "s"}}))
	got, err := d.GetConfiguration(ctx, &runtimev1.GetConfigurationRequest{StoreName: "items"})
	must(t, err)
	if i := got.GetItems()["a"]; i.GetValue() != "1" || i.GetMetadata()["unit"] != "s" {
		t.Errorf("%v", got)
	}
	err = set(&runtimepb.ConfigurationItem{Key: "a", Value: "2", Version: "0"})
	if status.Code(err) != codes.Aborted || infoOf(status.Convert(err)).GetReason() != api.CodeConfigurationSave {
		t.Errorf("a condition that does not hold: %v", err)
	}
	_, err = c.Delete(ctx, &runtimepb.DeleteConfigurationRequest{StoreName: "items"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("no key: %v", err)
	}
	_, err = c.Delete(ctx, &runtimepb.DeleteConfigurationRequest{StoreName: "items", Keys: []string{"a", "absent"}})
	must(t, err)
	if got, err := d.GetConfiguration(ctx, &runtimev1.GetConfigurationRequest{StoreName: "items"}); err != nil ||
		len(got.GetItems()) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestOwnServices_AreNeverForwarded calls a method of a later version with the metadata of a call to an application.
func TestOwnServices_AreNeverForwarded(t *testing.T) {
	conn := newFixture(t).serve(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "dapr-app-id", "web")
	err := conn.Invoke(ctx, "/quorate.runtime.v1.Jobs/Pause", &runtimepb.WatchRequest{}, &runtimepb.WatchEvent{})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "this version of Quorate") {
		t.Errorf("%v", err)
	}
}
