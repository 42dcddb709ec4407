package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// daprd is one sidecar of Dapr.
type daprd struct {
	*processes
	version string
	address string // of the HTTP API
	bare    bool
	conns   []client
}

// redisComponent is the component file for a daprd whose state store is a Redis server. Its format arguments are the
// port of Redis and further metadata.
const redisComponent = `apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: statestore}
spec:
  type: state.redis
  version: v1
  metadata: [{name: redisHost, value: "127.0.0.1:%s"}%s]
`

// actorStore writes a component file, so that daprd keeps the state of actors in a Redis server. It returns the
// directory of the file. The parameter port is the port of Redis.
func actorStore(dir, port string) (resources string, err error) {
	resources = filepath.Join(dir, "resources")
	if err := os.Mkdir(resources, 0o700); err != nil {
		return "", err
	}
	return resources, os.WriteFile(filepath.Join(resources, "redis.yaml"), fmt.Appendf(nil, redisComponent, port,
		`, {name: actorStateStore, value: "true"}`), 0o600)
}

// startDaprd starts a sidecar without Dapr's control plane. The parameter component is the content of a component file,
// or "" for no component.
func startDaprd(s *settings, dir, component string, args ...string) (*daprd, error) {
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
	if component != "" {
		if err := os.WriteFile(filepath.Join(resources, "redis.yaml"), []byte(component), 0o600); err != nil {
			return nil, err
		}
	}
	d := &daprd{processes: p, version: "daprd " + firstLine(program, "--version"), address: "127.0.0.1:" + ports[0],
		bare: s.bare}
	return d, p.start("daprd", program, append([]string{"--app-id", "app", "--dapr-http-port", ports[0],
		"--dapr-grpc-port", ports[1], "--dapr-internal-grpc-port", ports[2], "--metrics-port", ports[3],
		"--dapr-listen-addresses", "127.0.0.1", "--resources-path", resources, "--log-level", "warn"}, args...)...)
}

// daprdWithRedis starts daprd and a Redis server that does not sync its writes. The parameter component is the content
// of a component file. It contains %s in place of the port of Redis.
func daprdWithRedis(s *settings, dir, component string, args ...string) (*daprd, error) {
	redis, r, err := find("redis", s.redis, dir)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	if err := r.start("redis", redis, "--port", ports[0], "--bind", "127.0.0.1", "--save", "", "--dir",
		r.dir); err != nil {
		return nil, r.failed(err)
	}
	d, err := startDaprd(s, dir, fmt.Sprintf(component, ports[0]), args...)
	if err != nil {
		r.end()
		return nil, err
	}
	d.all, d.logs = append(d.all, r.all...), append(d.logs, r.logs...)
	return d, nil
}

// openDaprd starts daprd with its state in a Redis server that does not sync its writes.
func openDaprd(ctx context.Context, s *settings, dir string) (store, error) {
	d, err := daprdWithRedis(s, dir, fmt.Sprintf(redisComponent, "%s", ""))
	if err != nil {
		return nil, err
	}
	c, err := d.clients(1)
	if err == nil {
		err = until(ctx, func() error { return c[0].save(ctx, "ready", "yes") })
	}
	if err != nil {
		defer d.end()
		return nil, d.failed(err)
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

// dapr is n sidecars of Dapr with the servers that actors, jobs and workflows need.
type dapr struct {
	*processes
	text       string
	http, grpc []string // addresses of the APIs of the sidecars
}

// startDapr starts one placement server, n schedulers, n sidecars and one Redis server. The sidecars get the additional
// arguments args. The Redis server keeps the state of actors, and does not sync its writes.
func startDapr(s *settings, dir string, n int, args ...string) (_ *dapr, err error) {
	programs := make(map[string]string)
	d := &dapr{}
	for name, program := range map[string]string{"scheduler": s.scheduler, "placement": s.placement,
		"redis": s.redis, "daprd": s.daprd} {
		found, of, err := find(name, program, dir)
		if err != nil {
			return nil, err
		}
		if programs[name] = found; name == "daprd" {
			d.processes = of
		}
	}
	defer func() {
		if err != nil {
			err = d.failed(err)
			d.end()
		}
	}()
	d.text = fmt.Sprintf("daprd %s, sidecars and schedulers: %d, one placement server, state of actors in one Redis "+
		"server without fsync", firstLine(programs["daprd"], "--version"), n)
	ports, err := freePorts(5 + 9*n)
	if err != nil {
		return nil, err
	}
	resources, err := actorStore(d.dir, ports[0])
	if err != nil {
		return nil, err
	}
	err = errors.Join(d.start("redis", programs["redis"], "--port", ports[0], "--bind", "127.0.0.1", "--save", "",
		"--dir", d.dir), d.start("placement", programs["placement"], "--port", ports[1], "--healthz-port", ports[2],
		"--metrics-port", ports[3], "--listen-address", "127.0.0.1", "--id", "p", "--initial-cluster",
		"p=127.0.0.1:"+ports[4], "--log-level", "warn"))
	rest := ports[5:]
	schedulers := rest[:5*n] // gRPC, health, metrics, clients and servers of etcd
	var cluster, addresses []string
	for i := range n {
		cluster = append(cluster, "s"+strconv.Itoa(i)+"=http://127.0.0.1:"+schedulers[5*i+4])
		addresses = append(addresses, "127.0.0.1:"+schedulers[5*i])
	}
	for i := range n {
		own, id := schedulers[5*i:5*i+5], "s"+strconv.Itoa(i)
		err = errors.Join(err, d.start("scheduler-"+id, programs["scheduler"], "--id", id, "--port", own[0],
			"--healthz-port", own[1], "--metrics-port", own[2], "--etcd-client-port", own[3],
			"--etcd-client-listen-address", "127.0.0.1", "--listen-address", "127.0.0.1",
			"--override-broadcast-host-port", addresses[i], "--etcd-initial-cluster", strings.Join(cluster, ","),
			"--etcd-data-dir", d.dir+"/"+id, "--log-level", "warn"))
	}
	for i := range n {
		own := rest[5*n+4*i:]
		d.http = append(d.http, "127.0.0.1:"+own[0])
		d.grpc = append(d.grpc, "127.0.0.1:"+own[1])
		err = errors.Join(err, d.start("daprd-"+strconv.Itoa(i), programs["daprd"], append([]string{"--app-id", "app",
			"--dapr-http-port", own[0], "--dapr-grpc-port", own[1], "--dapr-internal-grpc-port", own[2],
			"--metrics-port", own[3], "--dapr-listen-addresses", "127.0.0.1", "--resources-path", resources,
			"--placement-host-address", "127.0.0.1:" + ports[1], "--scheduler-host-address",
			strings.Join(addresses, ","), "--log-level", "warn"}, args...)...))
	}
	return d, err
}
