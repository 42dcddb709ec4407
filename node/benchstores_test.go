package node_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/quorate/quorate/component/state/postgresql/postgrestest"
	"github.com/quorate/quorate/component/state/redis/redistest"
	goredis "github.com/redis/go-redis/v9"
)

// bare is the Go client of a database server. It runs the commands that an application would use without Quorate.
type bare struct {
	component string // the component file
	get, save func(ctx context.Context, key, value string) error
}

// BenchmarkStores compares gets and saves through a node with the same requests by the Go client of the database. The
// store of the node is Redis or PostgreSQL. There are 64 clients. Node, clients and database share the processors of
// the machine.
func BenchmarkStores(b *testing.B) {
	const clients, keys = 64, 1000
	value := strings.Repeat("v", 256)
	for _, of := range []struct {
		name  string
		start func(*testing.B, int) bare
	}{{"redis", startRedis}, {"postgresql", startPostgreSQL}} {
		b.Run(of.name, func(b *testing.B) {
			floor := of.start(b, clients)
			c := config(b)
			c.Components.Paths = resources(b, map[string]string{"bench.yaml": floor.component})
			n := open(b, c)
			mine := dialAll(b, n.Addresses().API[0], clients)
			path := "/v1.0/state/bench"
			post := func(key int) []byte {
				request := string(saveRequest(key, value, "strong"))
				return []byte(strings.Replace(request, "/v1.0/state/statestore", path, 1))
			}
			run(b, mine, keys, "204", func(_, i int) []byte { return post(i % keys) })
			for i := range keys {
				if err := floor.save(b.Context(), "bare"+strconv.Itoa(i), `"`+value+`"`); err != nil {
					b.Fatal(err)
				}
			}
			for _, kind := range []struct {
				name, status string
				request      func(key int) []byte
				call         func(ctx context.Context, key, value string) error
			}{
				{"get", "200", func(key int) []byte { return getRequest(path + "/k" + strconv.Itoa(key)) }, floor.get},
				{"save", "204", post, floor.save},
			} {
				b.Run(fmt.Sprintf("%s/clients=%d", kind.name, clients), func(b *testing.B) {
					requests := make([][]byte, keys)
					for i := range requests {
						requests[i] = kind.request(i)
					}
					var here, there time.Duration
					against(b, rounds, spending(b, &here, func(n int) time.Duration {
						return run(b, mine, n, kind.status, func(_, i int) []byte { return requests[i%keys] })
					}), spending(b, &there, func(n int) time.Duration {
						return repeat(b, clients, n, func(i int) error {
							return kind.call(b.Context(), "bare"+strconv.Itoa(i%keys), `"`+value+`"`)
						})
					}))
					b.ReportMetric(there.Seconds()/here.Seconds(), "x-floor-cpu")
				})
			}
		})
	}
}

// repeat makes n calls with several clients and returns how long they took.
func repeat(b *testing.B, clients, n int, call func(i int) error) time.Duration {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range clients {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := call(int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// componentFile returns a component file with one metadata entry. more is the YAML text of further entries.
func componentFile(typ, version, name, value, more string) string {
	return "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: bench\nspec:\n  type: " + typ +
		"\n  version: " + version + "\n  metadata:\n  - name: " + name + "\n    value: " +
		strconv.Quote(value) + "\n" + more
}

// startRedis starts a redis-server, and a client with a connection for each client of the benchmark.
func startRedis(b *testing.B, clients int) bare {
	b.Helper()
	address := redistest.Start(b).Address
	client := goredis.NewClient(&goredis.Options{Addr: address, Protocol: 2, PoolSize: clients})
	b.Cleanup(func() { _ = client.Close() })
	return bare{
		component: componentFile("state.redis", "v1", "redisHost", address, ""),
		get: func(ctx context.Context, key, _ string) error {
			return client.HGetAll(ctx, "bench||"+key).Err() // as Dapr stores a value
		},
		save: func(ctx context.Context, key, value string) error {
			return client.HSet(ctx, "bench||"+key, "data", value, "version", "1").Err()
		},
	}
}

// databases are the PostgreSQL servers of the benchmarks.
var databases postgrestest.Servers

// startPostgreSQL starts a PostgreSQL server that syncs each write, and a pool of connections for the clients.
func startPostgreSQL(b *testing.B, clients int) bare {
	b.Helper()
	dsn := "host=127.0.0.1 port=" + databases.Start(b, "fsync = on").Port +
		" user=postgres dbname=postgres sslmode=disable"
	pool, err := pgxpool.New(b.Context(), dsn+" pool_max_conns="+strconv.Itoa(clients/4))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return bare{
		component: componentFile("state.postgresql", "v2", "connectionString", dsn, "  - name: maxConns\n    value: \""+
			strconv.Itoa(clients/4)+"\"\n"),
		get: func(ctx context.Context, key, _ string) error {
			var value []byte
			var etag string
			err := pool.QueryRow(ctx, "SELECT value, etag::text FROM state WHERE key = $1", "bench||"+key).
				Scan(&value, &etag)
			return err
		},
		save: func(ctx context.Context, key, value string) error {
			_, err := pool.Exec(ctx, `INSERT INTO state (key, value, etag) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, etag = excluded.etag, updated_at = now()`,
				"bench||"+key, []byte(value), uuid.NewString())
			return err
		},
	}
}
