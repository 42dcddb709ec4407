package faulttest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Agree waits until all running nodes have the same keys, ETags and values. While it waits, no client may write.
func (c *Cluster) Agree(ctx context.Context) error {
	_, err := c.Digest(ctx)
	return err
}

// Digest describes the content that all running nodes have in common.
type Digest struct {
	Applied []uint64 // for each group, the applied index that all servers had; nil = the logs kept growing
	Keys    int
	Hash    string // over every key, ETag and value
}

// stillTime is how long Digest waits for the applied indexes to stop changing. In a cluster older than ten minutes, the
// indexes never stop changing, because the nodes constantly write log entries that delete expired request ids.
const stillTime = 15 * time.Second

// Digest waits until all running nodes have the same content, and returns a digest of it. It also waits up to 15
// seconds until all servers have the same applied index in every group. If this takes longer, the Applied field of the
// result is nil. No client may write while Digest waits.
func (c *Cluster) Digest(ctx context.Context) (Digest, error) {
	still, cancel := context.WithTimeout(ctx, stillTime)
	defer cancel()
	if d, err := c.digest(still, true); err == nil {
		return d, nil
	}
	d, err := c.digest(ctx, false)
	d.Applied = nil
	return d, err
}

// digest waits until all running nodes have the same contents, and returns a digest of them. If steady is true, all
// servers must also have the same applied indexes, and the indexes must not change while digest reads the contents.
func (c *Cluster) digest(ctx context.Context, steady bool) (d Digest, err error) {
	err = Until(ctx, func() error {
		var first map[string]Item
		var at []uint64
		nodes := c.Running()
		for i, n := range nodes {
			have, applied, err := n.moment(ctx, steady)
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", n.Name, err)
			case i == 0:
				first, at = have, applied
				continue
			}
			if err := same(first, have); err != nil {
				return fmt.Errorf("%s and %s: %w", nodes[0].Name, n.Name, err)
			}
			if steady && !n.Sidecar && !slices.Equal(at, applied) {
				return fmt.Errorf("%s has applied %v, and %s %v", nodes[0].Name, at, n.Name, applied)
			}
		}
		d = Digest{Applied: at, Keys: len(first), Hash: hash(first)}
		return nil
	})
	return d, err
}

// moment reads the contents of the node, and the applied index of each of its groups. If steady is true, an applied
// index that changes during the read is an error.
func (n *Node) moment(ctx context.Context, steady bool) (map[string]Item, []uint64, error) {
	before, err := n.applied(ctx)
	if err != nil {
		return nil, nil, err
	}
	have, err := n.contents(ctx)
	if err != nil {
		return nil, nil, err
	}
	after, err := n.applied(ctx)
	if err == nil && steady && !slices.Equal(before, after) {
		err = fmt.Errorf("it goes on, from %v to %v", before, after)
	}
	return have, after, err
}

// applied returns the applied index of each group.
func (n *Node) applied(ctx context.Context) (out []uint64, err error) {
	s, err := n.Status(ctx)
	for _, g := range s.Groups {
		out = append(out, g.AppliedIndex)
	}
	return out, err
}

// hash returns a hash over the contents of a replica.
func hash(all map[string]Item) string {
	h := sha256.New()
	for _, k := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(h, "%q %q %q\n", k, all[k].ETag, all[k].Value)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

func same(a, b map[string]Item) error {
	for k, item := range a {
		if b[k] != item {
			return fmt.Errorf("key %s is %+v here and %+v there", k, item, b[k])
		}
	}
	if len(a) != len(b) {
		return fmt.Errorf("%d keys here and %d there", len(a), len(b))
	}
	return nil
}

// contents reads the data of all applications with eventual consistency, so that a server answers from its own replica.
// The keys of the map have the form NUMBER/KEY, where NUMBER is the number of the application. Values longer than 32
// bytes are replaced with their SHA-256 sums.
func (n *Node) contents(ctx context.Context) (map[string]Item, error) {
	all := map[string]Item{}
	for app := range len(n.cluster.options.Apps) + 1 {
		if err := n.contentsOf(ctx, app, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (n *Node) contentsOf(ctx context.Context, app int, all map[string]Item) error {
	for token := ""; ; {
		keys, next, err := n.page(ctx, app, token)
		if err != nil {
			return err
		}
		r := GetAll(keys, Eventual)
		r.App = app
		a := n.Do(ctx, r)
		if a.Outcome != Done || a.Stale() {
			return fmt.Errorf("reading %d keys, level %q: %w", len(keys), a.Level, a.Err())
		}
		for i, k := range keys {
			item := a.Items[i]
			if len(item.Value) > sha256.Size {
				sum := sha256.Sum256([]byte(item.Value)) // megabytes from many nodes would need too much memory
				item.Value = hex.EncodeToString(sum[:])
			}
			all[fmt.Sprintf("%d/%s", app, k)] = item
		}
		if token = next; token == "" {
			return nil
		}
	}
}

// page returns one page of keys of the replica.
func (n *Node) page(ctx context.Context, app int, token string) (keys []string, next string, err error) {
	address := "http://" + appAddress(app) + "/v1.0/state/" + Store + "?consistency=eventual&limit=1000&token=" +
		url.QueryEscape(token)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, "", err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, "", err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	var list struct {
		Keys []struct {
			Key string `json:"key"`
		} `json:"keys"`
		Token string `json:"token"`
	}
	err = json.Unmarshal(body, &list)
	for _, k := range list.Keys {
		keys = append(keys, k.Key)
	}
	return keys, list.Token, err
}
