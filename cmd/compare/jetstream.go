package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsConfig is the configuration of one server. natsCluster is added if there are several servers.
const (
	natsConfig = `server_name: n%[1]d
listen: "127.0.0.1:%[2]s"
jetstream { store_dir: %[3]q%[4]s }
`
	natsCluster = `cluster {
  name: compare
  listen: "127.0.0.1:%s"
  routes: [%s]
}
`
)

// jetStream is a cluster of NATS servers with streams in files, each server in its own process.
type jetStream struct {
	urls  []string
	conns []*nats.Conn
}

// openJetStream returns an opener that starts n servers. If always is true, the servers sync every message to disk
// before they acknowledge it. Otherwise they sync at their default interval of two minutes.
func openJetStream(title string, n int, always bool) opener {
	return func(ctx context.Context, _ *settings, dir string) (store, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		program, p, err := find(title, self, dir)
		if err != nil {
			return nil, err
		}
		text := "the default sync_interval"
		if always {
			text = "sync_interval: always"
		}
		ports, err := freePorts(2 * n)
		if err != nil {
			return nil, err
		}
		files, err := writeNATSConfigs(p.dir, ports[:n], ports[n:], always)
		if err != nil {
			return nil, err
		}
		j := &jetStream{}
		box := newInbox()
		b := &broker{processes: p, title: title, inbox: box, connect: j.connect, closing: j.end,
			text: fmt.Sprintf("nats-server %s, JetStream, servers and replicas: %d, file store, %s, client nats.go, "+
				"one connection per %d clients", server.VERSION, n, text, sharers)}
		for i, file := range files {
			if err := p.start("n"+strconv.Itoa(i+1), program, "-nats", file); err != nil {
				b.end()
				return nil, err
			}
			j.urls = append(j.urls, "nats://127.0.0.1:"+ports[i])
		}
		if err := until(ctx, func() error { return j.subscribe(ctx, box, n) }); err != nil {
			defer b.end()
			return nil, p.failed(err)
		}
		return b.delivering(ctx, n)
	}
}

// writeNATSConfigs writes one configuration file for each server into dir, and returns the names of the files. Server i
// has the port clients[i] for clients and the port peers[i] for the other servers.
func writeNATSConfigs(dir string, clients, peers []string, always bool) (files []string, err error) {
	sync := ""
	if always {
		sync = ", sync_interval: always"
	}
	var routes []string
	for _, port := range peers {
		routes = append(routes, `"nats://127.0.0.1:`+port+`"`)
	}
	for i, port := range clients {
		name := filepath.Join(dir, "n"+strconv.Itoa(i+1))
		config := fmt.Sprintf(natsConfig, i+1, port, name, sync)
		if len(clients) > 1 {
			config += fmt.Sprintf(natsCluster, peers[i], strings.Join(routes, ", "))
		}
		files = append(files, name+".conf")
		if err := os.WriteFile(name+".conf", []byte(config), 0o600); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// serveNATS is the main function of a process that openJetStream starts. The argument is the configuration file.
func serveNATS(ctx context.Context, file string) error {
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		return err
	}
	options.NoSigs = true
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

func (j *jetStream) end() {
	for _, c := range j.conns {
		c.Close()
	}
}

// dial returns n connections, spread over the servers.
func (j *jetStream) dial(n int) ([]*nats.Conn, error) {
	for i := len(j.conns); i < n; i++ {
		c, err := nats.Connect(j.urls[i%len(j.urls)])
		if err != nil {
			return nil, err
		}
		j.conns = append(j.conns, c)
	}
	return j.conns[:n], nil
}

// subscribe creates a stream for each topic, and a durable consumer of handledTopic. It subscribes to the consumer
// through every server and passes the messages to the inbox. After an error, it can be called again.
func (j *jetStream) subscribe(ctx context.Context, box *inbox, replicas int) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	conns, err := j.dial(len(j.urls))
	if err != nil {
		return err
	}
	var consumers []jetstream.Consumer
	for _, c := range conns {
		js, err := jetstream.New(c)
		if err != nil {
			return err
		}
		for _, topic := range []string{storedTopic, handledTopic} {
			if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: topic, Subjects: []string{topic},
				Storage: jetstream.FileStorage, Replicas: replicas}); err != nil {
				return err
			}
		}
		consumer, err := js.CreateOrUpdateConsumer(ctx, handledTopic, jetstream.ConsumerConfig{Durable: "app",
			AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			return err
		}
		consumers = append(consumers, consumer)
	}
	for _, consumer := range consumers {
		if _, err := consumer.Consume(func(m jetstream.Msg) {
			box.arrive(m.Data())
			_ = m.Ack() // after an error the message comes again, and arrive ignores it
		}); err != nil {
			return err
		}
	}
	return nil
}

// connect returns n publishers. Several publishers share a connection, because the NATS client is designed for that
// (see sharers).
func (j *jetStream) connect(n int) ([]publisher, error) {
	conns, err := j.dial(max(min(n, len(j.urls)), (n+sharers-1)/sharers))
	if err != nil {
		return nil, err
	}
	out := make([]publisher, n)
	for i := range out {
		js, err := jetstream.New(conns[i%len(conns)])
		if err != nil {
			return nil, err
		}
		out[i] = &streamPublisher{js}
	}
	return out, nil
}

type streamPublisher struct{ js jetstream.JetStream }

func (p *streamPublisher) publish(ctx context.Context, topic string, message []byte) error {
	_, err := p.js.Publish(ctx, topic, message)
	return err
}
