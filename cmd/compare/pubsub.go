package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The operations on topics. A publish ends when its request is answered. A publishDeliver ends when the request is
// answered and the message has also arrived at the handler.
const (
	publish        operation = "publish"
	publishDeliver operation = "publish to handler"
)

const (
	brokerName   = "pubsub"
	storedTopic  = "stored"    // has no subscriber
	handledTopic = "handled"   // has the handler in this process as its subscriber
	arrivalTime  = time.Minute // how long deliver waits for a message
)

// publisher publishes one message after another. It is not safe for concurrent use.
type publisher interface {
	publish(ctx context.Context, topic string, message []byte) error
}

// broker is a system that delivers messages of this process to a handler in this process.
type broker struct {
	*processes
	title, text string
	inbox       *inbox
	// connect returns n publishers, spread over the nodes.
	connect func(n int) ([]publisher, error)
	closing func() // ends the clients and the handler
}

func (b *broker) name() string  { return b.title }
func (b *broker) about() string { return b.text }

func (b *broker) end() {
	b.closing()
	b.processes.end()
}

// delivering waits until the broker works, and returns the broker. The broker works when a message has arrived at the
// handler through each of the nodes. If this fails, delivering ends the broker.
func (b *broker) delivering(ctx context.Context, nodes int) (store, error) {
	publishers, err := b.connect(nodes)
	for i := 0; i < nodes && err == nil; i++ {
		err = until(ctx, func() error {
			ctx, cancel := context.WithTimeout(ctx, readyTime)
			defer cancel()
			return b.deliver(ctx, publishers[i], 0)
		})
	}
	if err != nil {
		defer b.end()
		return nil, b.failed(err)
	}
	return b, nil
}

// measure implements meter. It warms up for a quarter of the duration, so that connections are open.
func (b *broker) measure(ctx context.Context, f *figures, op operation, clients int, value string,
	duration time.Duration) error {
	publishers, err := b.connect(clients)
	if err != nil {
		return err
	}
	send := func(ctx context.Context, client, i int) error {
		if op == publish {
			return publishers[client].publish(ctx, storedTopic, message(i, len(value)))
		}
		return b.deliver(ctx, publishers[client], len(value))
	}
	if err := loop(ctx, &figures{}, b, clients, duration/4, send); err != nil {
		return err
	}
	return loop(ctx, f, b, clients, duration, send)
}

// deliver publishes a message of about the given size, and waits until it arrives.
func (b *broker) deliver(ctx context.Context, p publisher, size int) error {
	number, arrived := b.inbox.expect()
	if err := p.publish(ctx, handledTopic, message(number, size)); err != nil {
		b.inbox.forget(number)
		return err
	}
	late := time.NewTimer(arrivalTime)
	defer late.Stop()
	select {
	case <-arrived:
		return nil
	case <-ctx.Done():
		b.inbox.forget(number)
		return ctx.Err()
	case <-late.C:
		b.inbox.forget(number)
		return fmt.Errorf("message %d has not arrived after %s", number, arrivalTime)
	}
}

const messageMark = "message:"

// message returns a message of the given size in bytes: a JSON string that contains the given number. If the number
// does not fit into this size, the message is larger.
func message(number, size int) []byte {
	m := []byte(`"` + messageMark + strconv.Itoa(number) + ":")
	for len(m) < size-1 {
		m = append(m, 'v')
	}
	return append(m, '"')
}

// messageNumber returns the number of the message that a body contains, possibly within a CloudEvent.
func messageNumber(body []byte) (int, bool) {
	_, rest, found := bytes.Cut(body, []byte(messageMark))
	digits, _, _ := bytes.Cut(rest, []byte(":"))
	number, err := strconv.Atoi(string(digits))
	return number, found && err == nil
}

// inbox is the handler of messages. It notifies publishers when their messages have arrived.
type inbox struct {
	mu      sync.Mutex
	last    int
	waiting map[int]chan struct{}
}

func newInbox() *inbox { return &inbox{waiting: map[int]chan struct{}{}} }

// expect returns the number of the next message, and a channel that is closed when this message arrives.
func (b *inbox) expect() (number int, arrived <-chan struct{}) {
	done := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	b.waiting[b.last] = done
	return b.last, done
}

func (b *inbox) forget(number int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, number)
}

// arrive handles a message. It ignores a message that has arrived before.
func (b *inbox) arrive(body []byte) {
	number, ok := messageNumber(body)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if done := b.waiting[number]; done != nil {
		close(done)
		delete(b.waiting, number)
	}
}

// ServeHTTP implements http.Handler. The inbox is an application of Dapr: it subscribes to the topic handledTopic and
// receives the messages.
func (b *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/dapr/subscribe":
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `[{"pubsubname":%q,"topic":%q,"route":"/%[2]s"}]`, brokerName, handledTopic)
	case "/" + handledTopic:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		b.arrive(body)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// sidecarPublisher publishes over Dapr's HTTP API.
type sidecarPublisher struct{ bare }

func (p *sidecarPublisher) publish(ctx context.Context, topic string, message []byte) error {
	_, err := p.fetch(ctx, http.MethodPost, "/v1.0/publish/"+brokerName+"/"+topic, message)
	return err
}

// newSidecars returns a broker that publishes through sidecars. The parameter nodes has the addresses of their HTTP
// APIs. All sidecars have the same application, the inbox, so each of them can deliver the messages.
func newSidecars(p *processes, title, text string, box *inbox, app *http.Server, nodes []string) *broker {
	var conns []publisher
	return &broker{processes: p, title: title, text: text, inbox: box,
		closing: func() { _ = app.Close() },
		connect: func(n int) ([]publisher, error) {
			for i := len(conns); i < n; i++ {
				conns = append(conns, &sidecarPublisher{bare{address: nodes[i%len(nodes)]}})
			}
			return conns[:n], nil
		}}
}

// topicsQuorate returns an opener that starts n nodes, each with an instance of the application. The title selects the
// quorate program, as in findQuorate.
func topicsQuorate(title string, n int) opener {
	return func(ctx context.Context, s *settings, dir string) (store, error) {
		program, p, err := findQuorate(title, s, dir)
		if p == nil || err != nil {
			return nil, err
		}
		box := newInbox()
		app, port, err := serveLocally(box)
		if err != nil {
			return nil, err
		}
		c, err := p.startCluster(ctx, program, n, append([]string{"--app-id", "app", "--app-port", port},
			s.quorateArgs...)...)
		if err != nil {
			defer func() { p.end(); _ = app.Close() }()
			return nil, p.failed(err)
		}
		return newSidecars(p, title, fmt.Sprintf("%s, nodes: %d %s", firstLine(program, "version"), n,
			strings.Join(s.quorateArgs, " ")), box, app, addressesOf(c)).delivering(ctx, n)
	}
}

// redisTopics is a component file for daprd that keeps topics in a Redis server. The format verb %s stands for the port
// of Redis.
const redisTopics = `apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: ` + brokerName + `}
spec:
  type: pubsub.redis
  version: v1
  metadata: [{name: redisHost, value: "127.0.0.1:%s"}]
`

// topicsDaprd starts daprd and a Redis server. daprd keeps its topics in Redis Streams. The Redis server does not sync
// its writes to disk.
func topicsDaprd(ctx context.Context, s *settings, dir string) (store, error) {
	box := newInbox()
	app, port, err := serveLocally(box)
	if err != nil {
		return nil, err
	}
	d, err := daprdWithRedis(s, dir, redisTopics, "--app-port", port)
	if err != nil {
		_ = app.Close()
		return nil, err
	}
	return newSidecars(d.processes, "daprd", d.version+", topics in one Redis server without fsync", box, app,
		[]string{d.address}).delivering(ctx, 1)
}
