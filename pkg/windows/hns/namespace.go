package hns

import (
	"context"
	"encoding/json"
	"fmt"
)

// noNamespace is the ID by which a document of HNS may say that an endpoint is in no namespace.
const noNamespace = "00000000-0000-0000-0000-000000000000"

// Namespaces returns all namespaces.
func (c *Client) Namespaces(ctx context.Context) (all []Namespace, err error) {
	documents, err := c.NamespaceDocuments(ctx)
	if err != nil {
		return nil, err
	}
	for _, document := range documents {
		n, err := decodeNamespace(document)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// NamespaceDocuments returns the documents of all namespaces, unchanged. After an error it returns what it has read.
func (c *Client) NamespaceDocuments(ctx context.Context) (documents []json.RawMessage, err error) {
	ids, err := query(ctx, c, "list namespaces", c.calls.NamespaceIDs)
	if err != nil {
		return nil, err
	}
	return c.each(ctx, "namespace", ids, c.calls.Namespace)
}

// decodeNamespace decodes a document from HNS.
func decodeNamespace(document json.RawMessage) (Namespace, error) {
	var d struct {
		ID        string
		Resources []struct {
			Type string
			Data json.RawMessage // of a form that depends on Type
		}
	}
	if err := json.Unmarshal(document, &d); err != nil {
		return Namespace{}, fmt.Errorf("read the namespace's document: %w", err)
	}
	n := Namespace{ID: d.ID}
	for _, r := range d.Resources {
		var endpoint struct{ ID string }
		if r.Type != "Endpoint" {
			continue
		}
		if err := json.Unmarshal(r.Data, &endpoint); err != nil {
			return Namespace{}, fmt.Errorf("read the endpoints of namespace %s: %w", d.ID, err)
		}
		n.Endpoints = append(n.Endpoints, endpoint.ID)
	}
	return n, nil
}

// EndpointIDs returns the IDs of the endpoints of the network with this ID. HNS may add those of other networks.
func (c *Client) EndpointIDs(ctx context.Context, network string) ([]string, error) {
	return query(ctx, c, "list endpoints of network "+network, func() ([]string, error) { return c.calls.EndpointIDs(network, "") })
}

// EndpointUse returns who uses the endpoint with this ID.
func (c *Client) EndpointUse(ctx context.Context, id string) (Use, error) {
	return query(ctx, c, "ask who uses endpoint "+id, func() (Use, error) { return c.calls.EndpointUse(id) })
}
