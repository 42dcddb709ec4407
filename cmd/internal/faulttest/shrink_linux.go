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

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
)

// Remove has the node take another one out of the cluster for good, as the command of that
// name does: it asks again until no group has it any more.
func (n *Node) Remove(ctx context.Context, other *Node) error {
	n.Mark("remove " + other.Name)
	body, err := json.Marshal(api.RemoveRequest{Target: other.Name})
	if err != nil {
		return err
	}
	return Until(ctx, func() error { return n.takeOut(ctx, apihttp.AdminRemovePath, string(body)) })
}

// Leave takes the node out of the cluster for good, as the command of that name does, and
// waits until its process has ended.
func (n *Node) Leave(ctx context.Context) error {
	n.Mark("leave")
	ended := n.Ended()
	if err := Until(ctx, func() error { return n.takeOut(ctx, apihttp.AdminLeavePath, "") }); err != nil {
		return err
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s has left and does not end", n.Name)
	}
}

// takeOut asks once for a server to be taken out, and how far that has got.
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
	var r api.RemoveResult
	if err := json.Unmarshal(text, &r); err != nil || resp.StatusCode != http.StatusOK || !r.Done {
		return errors.Join(fmt.Errorf("not done, status %d: %s", resp.StatusCode, text), err)
	}
	return nil
}

// Without waits until a node votes in no group, and every group has most voters or fewer.
func (c *Cluster) Without(ctx context.Context, gone *Node, most int) error {
	return Until(ctx, func() error {
		for group := 0; ; group++ {
			have, known, err := c.voters(ctx, group)
			switch {
			case err != nil:
				return err
			case !known:
				return nil
			case len(have) > most || slices.Contains(have, gone.Name):
				return fmt.Errorf("group %d has the voters %v, %s should be gone and %d at most be left", group, have, gone.Name, most)
			}
		}
	})
}
