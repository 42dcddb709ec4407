package admin

import (
	"context"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API about actors.
const (
	ActorsPath         = "/v1/actors"
	ActorMovePath      = "/v1/actors/move"
	ActorRebalancePath = "/v1/actors/rebalance"
)

// Bounds of the number of actors of one application in a list.
const (
	defaultActors = 100
	maxActors     = 10_000
)

// Actors is the part of Node that shows actors and moves them.
type Actors interface {
	// ListActors describes the actors of all applications, with at most limit active actors of each.
	ListActors(ctx context.Context, limit int) ([]schema.ActorsStatus, error)
	// MoveActor moves an active actor to another node, after its running turn. It returns fault.NotFound if the node
	// does not host the type. It returns fault.Conflict if the actor is there already or is not active, or if its
	// running turn does not end in time.
	MoveActor(ctx context.Context, r schema.ActorMove) error
	// RebalanceActors distributes the actors of a type evenly. After an error, some actors may have moved.
	RebalanceActors(ctx context.Context, kind string) (schema.ActorsMoved, error)
}

func (h *handler) actors(w http.ResponseWriter, r *http.Request) {
	limit := defaultActors
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 0 || limit > maxActors {
			h.answer(w, nil, fault.New(fault.Invalid, "admin.actors", "limit is no number from 0 to "+
				strconv.Itoa(maxActors)))
			return
		}
	}
	list, err := h.node.ListActors(r.Context(), limit)
	if list == nil {
		list = []schema.ActorsStatus{}
	}
	h.answer(w, list, err)
}

func (h *handler) moveActor(w http.ResponseWriter, r *http.Request) {
	const op = "admin.moveActor"
	var body schema.ActorMove
	err := decode(w, r, op, &body)
	if err == nil && (body.Type == "" || body.ID == "" || body.Node == "") {
		err = &fault.Error{Code: fault.Invalid, Op: op, Msg: "an actor or a node is missing",
			Hint: "give a type, an id and a node; actors list shows them"}
	}
	if err == nil {
		err = h.node.MoveActor(r.Context(), body)
	}
	h.answer(w, schema.ActorsMoved{Moved: 1}, err)
}

func (h *handler) rebalanceActors(w http.ResponseWriter, r *http.Request) {
	const op = "admin.rebalanceActors"
	var body schema.ActorRebalance
	err := decode(w, r, op, &body)
	if err == nil && body.Type == "" {
		err = &fault.Error{Code: fault.Invalid, Op: op, Msg: "no type of actors is named",
			Hint: "actors list shows the types"}
	}
	var moved schema.ActorsMoved
	if err == nil {
		moved, err = h.node.RebalanceActors(r.Context(), body.Type)
	}
	h.answer(w, moved, err)
}
