local key = argument()
local id = call('HGET', prefix .. ':task_ids', key)
if not id then return 0 end
local task = call('HMGET', task_key(id), 'lane', 'state')
if task[2] ~= 'dead' then return 0 end
remove_task(id, key, task[1], 'dead')
return 1
