package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// daprd is one sidecar of Dapr.
type daprd struct {
	*processes
	version string
	address string // of the API
	bare    bool
	conns   []client
}

// redisComponent makes a Redis server the state store of daprd.
const redisComponent = `apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: statestore}
spec:
  type: state.redis
  version: v1
  metadata: [{name: redisHost, value: "127.0.0.1:%s"}%s]
`

// actorStore writes the file of a component that keeps the state of actors in a Redis server. It returns the
// directory of the file. The parameter port is the port of Redis.
func actorStore(dir, port string) (resources string, err error) {
	resources = filepath.Join(dir, "resources")
	if err := os.Mkdir(resources, 0o700); err != nil {
		return "", err
	}
	return resources, os.WriteFile(filepath.Join(resources, "redis.yaml"), fmt.Appendf(nil, redisComponent, port,
		`, {name: actorStateStore, value: "true"}`), 0o600)
}

// startDaprd starts a sidecar without a control plane, with the components in its directory.
func startDaprd(s *settings, dir string, args ...string) (*daprd, error) {
	program, p, err := find("daprd", s.daprd, dir)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	resources := filepath.Join(p.dir, "resources")
	if err := os.Mkdir(resources, 0o700); err != nil {
		return nil, err
	}
	d := &daprd{processes: p, version: "daprd " + firstLine(program, "--version"), address: "127.0.0.1:" + ports[0],
		bare: s.bare}
	return d, p.start("daprd", program, append([]string{"--app-id", "app", "--dapr-http-port", ports[0],
		"--dapr-grpc-port", ports[1], "--dapr-internal-grpc-port", ports[2], "--metrics-port", ports[3],
		"--dapr-listen-addresses", "127.0.0.1", "--resources-path", resources, "--log-level", "warn"}, args...)...)
}

// openDaprd starts daprd with state in a Redis server that does not sync its writes.
func openDaprd(ctx context.Context, s *settings, dir string) (store, error) {
	redis, r, err := find("redis", s.redis, dir)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	d, err := startDaprd(s, dir)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (store, error) {
		defer d.end()
		return nil, d.failed(err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "resources", "redis.yaml"), fmt.Appendf(nil, redisComponent, ports[0],
		""), 0o600); err != nil {
		return fail(err)
	}
	if err := d.start("redis", redis, "--port", ports[0], "--bind", "127.0.0.1", "--save", "", "--dir",
		r.dir); err != nil {
		return fail(err)
	}
	c, err := d.clients(1)
	if err == nil {
		err = until(ctx, func() error { return c[0].save(ctx, "ready", "yes") })
	}
	if err != nil {
		return fail(err)
	}
	return d, nil
}

func (d *daprd) name() string  { return "daprd" }
func (d *daprd) about() string { return d.version + ", state in one Redis server without fsync" }

func (d *daprd) clients(n int) ([]client, error) {
	for i := len(d.conns); i < n; i++ {
		d.conns = append(d.conns, quorateClientOf("http://"+d.address, d.bare))
	}
	return d.conns[:n], nil
}
