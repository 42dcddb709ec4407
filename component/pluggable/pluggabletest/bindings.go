package pluggabletest

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"testing"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/testutil"
)

// Output serves an output binding. It answers each call with the data and the metadata of the request, and adds the
// name of the operation to the metadata.
type Output struct {
	components.UnimplementedOutputBindingServer

	Operations []string
	// Before is called before Invoke; nil = nothing.
	Before func(ctx context.Context, r *components.InvokeRequest) error

	instances *Instances
}

// Register registers the output binding with the server. To add o to a Process, use o.Register as a Service.
func (o *Output) Register(server *grpc.Server, i *Instances) {
	if o.instances != i { // calls of an earlier incarnation may still read it
		o.instances = i
	}
	components.RegisterOutputBindingServer(server, o)
}

// Init implements components.OutputBindingServer.
func (o *Output) Init(ctx context.Context, r *components.OutputBindingInitRequest) (
	*components.OutputBindingInitResponse, error) {
	return &components.OutputBindingInitResponse{}, o.instances.Init(ctx, r.GetMetadata().GetProperties())
}

// ListOperations implements components.OutputBindingServer.
func (o *Output) ListOperations(ctx context.Context, _ *components.ListOperationsRequest) (
	*components.ListOperationsResponse, error) {
	return &components.ListOperationsResponse{Operations: o.Operations}, o.instances.Check(ctx)
}

// Invoke implements components.OutputBindingServer.
func (o *Output) Invoke(ctx context.Context, r *components.InvokeRequest) (*components.InvokeResponse, error) {
	if err := o.instances.Check(ctx); err != nil {
		return nil, err
	}
	if o.Before != nil {
		if err := o.Before(ctx, r); err != nil {
			return nil, err
		}
	}
	meta := maps.Clone(r.GetMetadata())
	if meta == nil {
		meta = map[string]string{}
	}
	meta["operation"] = r.GetOperation()
	return &components.InvokeResponse{Data: r.GetData(), Metadata: meta, ContentType: "application/json"}, nil
}

// Input serves an input binding.
type Input struct {
	components.UnimplementedInputBindingServer

	instances *Instances

	mu      sync.Mutex
	stream  *inputStream // the newest one; nil = none
	changed chan struct{}
	count   int
}

// inputStream is one stream of events.
type inputStream struct {
	components.InputBinding_ReadServer
	end     chan struct{} // closed to end the stream
	waiting map[string]chan *components.ReadRequest
}

// Register registers the input binding with the server. To add in to a Process, use in.Register as a Service.
func (in *Input) Register(server *grpc.Server, i *Instances) {
	in.mu.Lock()
	in.instances, in.stream, in.changed = i, nil, make(chan struct{})
	in.mu.Unlock()
	components.RegisterInputBindingServer(server, in)
}

// Init implements components.InputBindingServer.
func (in *Input) Init(ctx context.Context, r *components.InputBindingInitRequest) (*components.InputBindingInitResponse,
	error) {
	return &components.InputBindingInitResponse{}, in.instances.Init(ctx, r.GetMetadata().GetProperties())
}

// Read implements components.InputBindingServer.
func (in *Input) Read(server components.InputBinding_ReadServer) error {
	if err := in.instances.Check(server.Context()); err != nil {
		return err
	}
	s := &inputStream{InputBinding_ReadServer: server, end: make(chan struct{}),
		waiting: map[string]chan *components.ReadRequest{}}
	in.mu.Lock()
	in.stream = s
	close(in.changed)
	in.changed = make(chan struct{})
	in.mu.Unlock()
	go func() {
		for {
			ack, err := server.Recv()
			if err != nil {
				return
			}
			in.mu.Lock()
			if c := s.waiting[ack.GetMessageId()]; c != nil {
				c <- ack
				delete(s.waiting, ack.GetMessageId())
			}
			in.mu.Unlock()
		}
	}()
	select {
	case <-s.end:
		return status.Error(codes.Aborted, "the stream was ended")
	case <-server.Context().Done():
		return server.Context().Err()
	}
}

// EndStream ends the newest stream.
func (in *Input) EndStream() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.stream != nil {
		close(in.stream.end)
		in.stream = nil
	}
}

// Send sends an event on the newest stream, and waits for a stream if there is none. If id is empty, the event gets a
// unique id. The acknowledgement arrives on the returned channel.
func (in *Input) Send(t testing.TB, id, data string) <-chan *components.ReadRequest {
	t.Helper()
	for {
		in.mu.Lock()
		s, changed := in.stream, in.changed
		if s == nil {
			in.mu.Unlock()
			select {
			case <-changed:
			case <-t.Context().Done():
				t.Fatal("there is no stream")
			}
			continue
		}
		in.count++
		if id == "" {
			id = "event " + strconv.Itoa(in.count)
		}
		c := make(chan *components.ReadRequest, 1)
		s.waiting[id] = c
		err := s.Send(&components.ReadResponse{Data: []byte(data), MessageId: id,
			Metadata: map[string]string{"from": "test"}})
		in.mu.Unlock()
		testutil.Must(t, err)
		return c
	}
}
