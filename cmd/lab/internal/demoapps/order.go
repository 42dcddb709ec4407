package demoapps

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/quorate/quorate/cmd/lab/internal/demonode"
)

// node is a node with an application beside it.
type node struct {
	*demonode.Node
	app, language string
}

// order is an order of a customer.
type order struct {
	ID    string `json:"id"`
	Item  string `json:"item"`
	Count int    `json:"count"`
}

// String returns the order as JSON.
func (o order) String() string {
	text, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// receipt is the result of an order.
type receipt struct {
	Order    string `json:"order"`
	State    string `json:"state"`
	Left     int    `json:"left"`
	ServedBy string `json:"servedBy"`
}

// String returns the receipt as JSON.
func (r receipt) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// place sends an order through the API of n to the application "orders", which may run on another node. It returns an
// error if the receipt does not belong to the order.
func (n *node) place(ctx context.Context, o order) (receipt, error) {
	var r receipt
	err := n.Call(ctx, http.MethodPost, "/v1.0/invoke/orders/method/order", o.String(), &r)
	if err == nil && (r.Order != o.ID || r.State != "taken") {
		err = fmt.Errorf("order %s: the receipt is %s", o.ID, r)
	}
	return r, err
}
