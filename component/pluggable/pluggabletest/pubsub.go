package pluggabletest

import (
	"context"
	"strings"
	"sync"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component/pubsub"
)

// PubSub serves a publish/subscribe component. It stores messages in Broker, which the test provides.
type PubSub struct {
	components.UnimplementedPubSubServer

	Broker pubsub.Broker
	Offers []string // features that the process reports
	// Published is called with the metadata of each message, and of each request with several messages; nil =
	// nothing.
	Published func(metadata map[string]string)
	// Subscribed is called with the topic of each new stream. Its error ends the stream. nil = nothing is called.
	Subscribed func(topic *components.Topic) error
	// Change changes a message before it is sent; nil = nothing.
	Change func(m *components.PullMessagesResponse)

	instances *Instances

	mu   sync.Mutex
	ends map[chan struct{}]bool
}

// Register registers the publish/subscribe component with the server. To add p to a Process, use p.Register as a
// Service.
func (p *PubSub) Register(server *grpc.Server, i *Instances) {
	p.mu.Lock()
	p.instances, p.ends = i, map[chan struct{}]bool{}
	p.mu.Unlock()
	components.RegisterPubSubServer(server, p)
}

// Init implements components.PubSubServer.
func (p *PubSub) Init(ctx context.Context, r *components.PubSubInitRequest) (*components.PubSubInitResponse, error) {
	return &components.PubSubInitResponse{}, p.instances.Init(ctx, r.GetMetadata().GetProperties())
}

// Features implements components.PubSubServer.
func (p *PubSub) Features(ctx context.Context, _ *components.FeaturesRequest) (*components.FeaturesResponse, error) {
	return &components.FeaturesResponse{Features: p.Offers}, p.instances.Check(ctx)
}

// Publish implements components.PubSubServer.
func (p *PubSub) Publish(ctx context.Context, r *components.PublishRequest) (*components.PublishResponse, error) {
	if err := p.instances.Check(ctx); err != nil {
		return nil, err
	}
	p.published(r.GetMetadata())
	_, err := p.Broker.Publish(ctx, pubsub.PublishRequest{Topic: r.GetTopic(), Messages: []pubsub.Message{{
		Data: r.GetData(), ContentType: r.GetContentType(), Metadata: r.GetMetadata()}}})
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &components.PublishResponse{}, nil
}

func (p *PubSub) published(metadata map[string]string) {
	if p.Published != nil {
		p.Published(metadata)
	}
}

// BulkPublish implements components.PubSubServer. Messages with the data "refused" fail; all other messages are
// published.
func (p *PubSub) BulkPublish(ctx context.Context, r *components.BulkPublishRequest) (*components.BulkPublishResponse,
	error) {
	p.published(r.GetMetadata())
	out := &components.BulkPublishResponse{}
	for _, e := range r.GetEntries() {
		if string(e.GetEvent()) == "refused" {
			out.FailedEntries = append(out.FailedEntries, &components.BulkPublishResponseFailedEntry{
				EntryId: e.GetEntryId(), Error: "it was refused"})
			continue
		}
		_, err := p.Publish(ctx, &components.PublishRequest{Topic: r.GetTopic(), Data: e.GetEvent(),
			ContentType: e.GetContentType(), Metadata: e.GetMetadata()})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// EndStreams ends all streams.
func (p *PubSub) EndStreams() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for end := range p.ends {
		close(end)
		delete(p.ends, end)
	}
}

// PullMessages implements components.PubSubServer.
func (p *PubSub) PullMessages(server components.PubSub_PullMessagesServer) error {
	if err := p.instances.Check(server.Context()); err != nil {
		return err
	}
	first, err := server.Recv()
	if err != nil {
		return err
	}
	if p.Subscribed != nil {
		if err := p.Subscribed(first.GetTopic()); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(server.Context())
	defer cancel()
	s, err := p.Broker.Subscribe(ctx, pubsub.SubscribeRequest{Topic: first.GetTopic().GetName(),
		Group: first.GetTopic().GetMetadata()[pubsub.MetadataConsumerID], Unsettled: 100})
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer s.Close()
	end := make(chan struct{})
	p.mu.Lock()
	p.ends[end] = true
	p.mu.Unlock()
	var mu sync.Mutex
	sent := map[string]pubsub.Delivery{}
	go func() {
		defer cancel()
		for {
			ack, err := server.Recv()
			if err != nil {
				return
			}
			mu.Lock()
			d := sent[ack.GetAckMessageId()]
			delete(sent, ack.GetAckMessageId())
			mu.Unlock()
			outcome := pubsub.Acknowledged
			if e := ack.GetAckError(); e != nil {
				outcome = pubsub.Failed
				if strings.Contains(e.GetMessage(), pubsub.Released.String()) {
					outcome = pubsub.Released
				}
			}
			_ = s.Settle(ctx, &d, outcome) // fails when the broker is closed
		}
	}()
	go func() {
		select {
		case <-end:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		list, err := s.Receive(ctx, 1)
		if err != nil {
			return status.Error(codes.Aborted, "the stream has ended")
		}
		d := list[0]
		m := &components.PullMessagesResponse{Data: d.Data, TopicName: d.Topic, Metadata: d.Metadata,
			ContentType: d.ContentType, Id: d.Ref}
		if p.Change != nil {
			p.Change(m)
		}
		mu.Lock()
		sent[m.GetId()] = d
		mu.Unlock()
		if err := server.Send(m); err != nil {
			return err
		}
	}
}
