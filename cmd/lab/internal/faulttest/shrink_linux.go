package faulttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
)

// Remove removes another node from the cluster permanently, like the command quorate remove. It repeats the request
// until the removal is complete or ctx ends.
func (n *Node) Remove(ctx context.Context, other *Node) error {
	n.Mark("remove " + other.Name)
	body, err := json.Marshal(schema.RemoveRequest{Target: other.Name})
	if err != nil {
		return err
	}
	return Until(ctx, func() error { return n.takeOut(ctx, adminapi.RemovePath, string(body)) })
}

// Leave removes this node from the cluster permanently, like the command quorate leave, and waits until its process
// has ended.
func (n *Node) Leave(ctx context.Context) error {
	n.Mark("leave")
	ended := n.Ended()
	if err := Until(ctx, func() error { return n.takeOut(ctx, adminapi.LeavePath, "") }); err != nil {
		return err
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s has left and does not end", n.Name)
	}
}

// takeOut sends one request to the admin API of the node, to remove another node or to make this node leave. It returns
// an error unless the response reports that the removal is complete.
func (n *Node) takeOut(ctx context.Context, path, body string) error {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := n.admin.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var r schema.RemoveResult
	if err := json.Unmarshal(text, &r); err != nil || resp.StatusCode != http.StatusOK || !r.Done {
		return errors.Join(fmt.Errorf("not done, status %d: %s", resp.StatusCode, text), err)
	}
	return nil
}

// Without waits until the removed node is not a voter of any group, and no group has more than limit voters.
func (c *Cluster) Without(ctx context.Context, removed *Node, limit int) error {
	return Until(ctx, func() error {
		for group := 0; ; group++ {
			have, known, err := c.voters(ctx, group)
			switch {
			case err != nil:
				return err
			case !known:
				return nil
			case len(have) > limit || slices.Contains(have, removed.Name):
				return fmt.Errorf("group %d has the voters %v, %s should be gone and %d at most be left", group, have,
					removed.Name, limit)
			}
		}
	})
}
