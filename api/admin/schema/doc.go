// Package schema defines the types of the admin API. The types describe what an operator can see and change in a node
// and in the cluster, and do not depend on how data is replicated. The package owns their JSON names, which never
// change, because programs read them.
package schema
