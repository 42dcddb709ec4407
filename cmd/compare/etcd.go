package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// etcd is a cluster of three members on this machine.
type etcd struct {
	*processes
	version string
	members []string // client addresses
	conns   []*etcdConn
	bare    bool
	gateway []client
}

// etcdConn is a connection to etcd. The function session returns the etcd session, which all locks on the connection
// share.
type etcdConn struct {
	*clientv3.Client
	session func() (*concurrency.Session, error)
}

// sharers is how many load clients share one etcd client and its connection. The etcd client is designed to be used by
// many goroutines. With a connection for each load client, etcd would be slower.
const sharers = 8

func openEtcd(ctx context.Context, s *settings, dir string) (store, error) {
	e, err := startEtcd(ctx, "etcd", s, dir)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// startEtcd starts the members in the directory title below dir.
func startEtcd(ctx context.Context, title string, s *settings, dir string) (*etcd, error) {
	program, p, err := find(title, s.etcd, dir)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(6)
	if err != nil {
		return nil, err
	}
	e := &etcd{processes: p, bare: s.bare, version: firstLine(program, "--version")}
	var cluster []string
	for i := range 3 {
		cluster = append(cluster, "m"+strconv.Itoa(i+1)+"=http://127.0.0.1:"+ports[3+i])
	}
	for i := range 3 {
		name, url, peer := "m"+strconv.Itoa(i+1), "http://127.0.0.1:"+ports[i], "http://127.0.0.1:"+ports[3+i]
		if err := p.start(name, program, "--name", name, "--data-dir", name, "--listen-client-urls", url,
			"--advertise-client-urls", url, "--listen-peer-urls", peer,
			"--initial-advertise-peer-urls", peer, "--initial-cluster", strings.Join(cluster, ","),
			"--initial-cluster-state", "new", "--logger", "zap", "--log-level", "warn"); err != nil {
			p.end()
			return nil, err
		}
		e.members = append(e.members, url)
	}
	if err := e.connect(3); err != nil {
		p.end()
		return nil, err
	}
	if err := until(ctx, func() error { return (&etcdClient{e.conns[0]}).save(ctx, "ready", "yes") }); err != nil {
		defer e.end()
		return nil, p.failed(err)
	}
	return e, nil
}

func (e *etcd) name() string { return "etcd" }
func (e *etcd) about() string {
	if e.bare {
		return e.version + ", three members, JSON gateway, minimal HTTP/1.1 client"
	}
	return e.version + ", three members, client go.etcd.io/etcd/client/v3, one connection per " +
		strconv.Itoa(sharers) + " clients"
}

func (e *etcd) end() {
	for _, c := range e.conns {
		_ = c.Close() // errors do not matter, because the members are killed next
	}
	e.processes.end()
}

func (e *etcd) connect(n int) error {
	for i := len(e.conns); i < n; i++ {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.members[i%3]}, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		e.conns = append(e.conns, &etcdConn{c, sync.OnceValues(func() (*concurrency.Session, error) {
			return concurrency.NewSession(c, concurrency.WithTTL(int(lockTime.Seconds())))
		})})
	}
	return nil
}

func (e *etcd) clients(n int) ([]client, error) {
	if e.bare {
		for i := len(e.gateway); i < n; i++ {
			e.gateway = append(e.gateway, &etcdGateway{bare{address: hostPort(e.members[i%3])}})
		}
		return e.gateway[:n], nil
	}
	conns := max(min(n, 3), (n+sharers-1)/sharers)
	if err := e.connect(conns); err != nil {
		return nil, err
	}
	out := make([]client, n)
	for i := range out {
		out[i] = &etcdClient{e.conns[i%conns]}
	}
	return out, nil
}

type etcdClient struct{ c *etcdConn }

func (c *etcdClient) save(ctx context.Context, key, value string) error {
	_, err := c.c.Put(ctx, key, value)
	return err
}

func (c *etcdClient) lock(ctx context.Context, name string) error {
	session, err := c.c.session()
	if err != nil {
		return err
	}
	m := concurrency.NewMutex(session, name)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	return m.Unlock(ctx)
}

func (c *etcdClient) read(ctx context.Context, key string, strong bool) (string, error) {
	var options []clientv3.OpOption
	if !strong {
		options = append(options, clientv3.WithSerializable())
	}
	got, err := c.c.Get(ctx, key, options...)
	if err != nil {
		return "", err
	}
	if len(got.Kvs) != 1 {
		return "", errors.New("etcd has no value of " + key)
	}
	return string(got.Kvs[0].Value), nil
}

// etcdGateway is a client of etcd's JSON gateway, which translates HTTP to gRPC.
type etcdGateway struct{ bare bare }

// lock returns errors.ErrUnsupported, because locks are not measured over the gateway.
func (c *etcdGateway) lock(context.Context, string) error { return errors.ErrUnsupported }

type etcdPair struct {
	Key          []byte `json:"key"`
	Value        []byte `json:"value,omitempty"`
	Serializable bool   `json:"serializable,omitempty"`
}

func (c *etcdGateway) save(ctx context.Context, key, value string) error {
	_, err := c.call(ctx, "/v3/kv/put", etcdPair{Key: []byte(key), Value: []byte(value)})
	return err
}

func (c *etcdGateway) read(ctx context.Context, key string, strong bool) (string, error) {
	body, err := c.call(ctx, "/v3/kv/range", etcdPair{Key: []byte(key), Serializable: !strong})
	if err != nil {
		return "", err
	}
	var got struct {
		Pairs []etcdPair `json:"kvs"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return "", err
	}
	if len(got.Pairs) != 1 {
		return "", errors.New("etcd has no value of " + key)
	}
	return string(got.Pairs[0].Value), nil
}

func (c *etcdGateway) call(ctx context.Context, path string, pair etcdPair) ([]byte, error) {
	body, err := json.Marshal(pair)
	if err != nil {
		return nil, err
	}
	return c.bare.fetch(ctx, http.MethodPost, path, body)
}
